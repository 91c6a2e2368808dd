variable "project" {
  description = "The project, in which the controller buys its machines too."
  type        = string
}

variable "zone" {
  description = "Of the machine and the disk, such as us-central1-a."
  type        = string
}

variable "name" {
  description = "Of everything that is made."
  type        = string
  default     = "perdure-controller"
}

variable "machine_type" {
  description = "2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "e2-medium"
}

variable "network" {
  description = "A VPC network."
  type        = string
  default     = "default"
}

variable "subnet" {
  description = "A subnet of the zone's region; null for the network's own."
  type        = string
  default     = null
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

variable "package" {
  description = "What pip installs: a requirement, or the URL of a wheel with its extras."
  type        = string
  default     = "perdure[controller,gcp]"
}

variable "config" {
  description = "Sections of config.yaml, as in { gcp = { regions = [\"us-central1\"] } }."
  type        = any
  default     = { gcp = {} }
}
