variable "project" {
  description = "The project of the controller and of the machines that it launches."
  type        = string
}

variable "zone" {
  description = "Zone of the machine and the disk, such as us-central1-a."
  type        = string
}

variable "name" {
  description = "Name of every resource of this module."
  type        = string
  default     = "perdure-controller"
}

variable "machine_type" {
  description = "Machine type; 2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "e2-medium"
}

variable "network" {
  description = "A VPC network."
  type        = string
  default     = "default"
}

variable "subnet" {
  description = "A subnet of the zone's region; null for the network's default."
  type        = string
  default     = null
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

variable "package" {
  description = "The package for pip: a wheel that the machine can fetch, such as \"perdure[controller,gcp] @ https://example.org/perdure-0.1.0-py3-none-any.whl\". `python -m build --wheel` makes one."
  type        = string
}

variable "config" {
  description = "Sections of config.yaml, as in { gcp = { regions = [\"us-central1\"] } }."
  type        = any
  default     = { gcp = {} }
}
