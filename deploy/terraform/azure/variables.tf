variable "resource_group" {
  description = "An existing resource group: its location is the machine's."
  type        = string
}

variable "subnet_id" {
  description = "A subnet of that location."
  type        = string
}

variable "ssh_public_key" {
  description = "Azure makes no machine without one; port 22 is not opened."
  type        = string
}

variable "name" {
  description = "Of everything that is made."
  type        = string
  default     = "perdure-controller"
}

variable "size" {
  description = "2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "Standard_B2s"
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
  default     = "perdure[controller,azure]"
}

variable "config" {
  description = "Sections of config.yaml beside `azure` with this subscription; given here, that section is used instead."
  type        = any
  default     = {}
}
