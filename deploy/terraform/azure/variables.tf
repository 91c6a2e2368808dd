variable "resource_group" {
  description = "An existing resource group, whose location the machine uses."
  type        = string
}

variable "subnet_id" {
  description = "A subnet of that location."
  type        = string
}

variable "ssh_public_key" {
  description = "SSH public key, which Azure requires; port 22 is not opened."
  type        = string
}

variable "name" {
  description = "Name of every resource of this module."
  type        = string
  default     = "perdure-controller"
}

variable "size" {
  description = "Machine type; 2 vCPUs and 4 GiB are enough."
  type        = string
  default     = "Standard_B2s"
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
  description = "The package for pip: a wheel that the machine can fetch, such as \"perdure[controller,azure] @ https://example.org/perdure-0.1.0-py3-none-any.whl\". `python -m build --wheel` makes one."
  type        = string
}

variable "config" {
  description = "Sections of config.yaml. An `azure` section here replaces the default one with this subscription."
  type        = any
  default     = {}
}
