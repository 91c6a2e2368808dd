variable "subnet_id" {
  description = "A public subnet: its zone is the machine's and the disk's."
  type        = string
}

variable "name" {
  description = "Of everything that is made."
  type        = string
  default     = "perdure-controller"
}

variable "instance_type" {
  description = "2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "t3.medium"
}

variable "disk_gib" {
  description = "Of the disk for the state, which is kept when the machine goes."
  type        = number
  default     = 20
}

variable "callers" {
  description = "IP networks that may reach the controller: users' and all nodes'."
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "more_policies" {
  description = "ARNs of policies for the role beside deploy/iam/aws-controller.json: for jobs' buckets, or for shells."
  type        = list(string)
  default     = []
}

variable "package" {
  description = "What pip installs: a requirement, or the URL of a wheel with its extras."
  type        = string
  default     = "perdure[controller,aws]"
}

variable "config" {
  description = "Sections of config.yaml, as in { aws = { regions = [\"us-east-1\"] } }."
  type        = any
  default     = { aws = {} }
}
