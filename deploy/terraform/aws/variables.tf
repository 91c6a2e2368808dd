variable "subnet_id" {
  description = "A public subnet, whose zone the machine and the disk use."
  type        = string
}

variable "name" {
  description = "Name of every resource of this module."
  type        = string
  default     = "perdure-controller"
}

variable "instance_type" {
  description = "Machine type; 2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "t3.medium"
}

variable "disk_gib" {
  description = "Size of the disk for the state in GiB; the disk is kept when the machine is deleted."
  type        = number
  default     = 20
}

variable "callers" {
  description = "IP networks that may connect to the controller: those of users and of all nodes."
  type        = list(string)
  default     = ["0.0.0.0/0"]
}

variable "more_policies" {
  description = "ARNs of policies for the role in addition to deploy/iam/aws-controller.json and aws-buckets.json, such as for shells."
  type        = list(string)
  default     = []
}

variable "package" {
  description = "The package for pip: a wheel that the machine can fetch, such as \"perdure[controller,aws] @ https://example.org/perdure-0.1.0-py3-none-any.whl\". `python -m build --wheel` makes one."
  type        = string
}

variable "config" {
  description = "Sections of config.yaml, as in { aws = { regions = [\"us-east-1\"] } }."
  type        = any
  default     = { aws = {} }
}
