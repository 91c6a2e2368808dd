# The user data of a controller's virtual machine, the same in every cloud. It needs no provider.
terraform {
  required_version = ">= 1.5"
}

variable "device" {
  description = "Device path of the disk that holds the state."
  type        = string
}

variable "address" {
  description = "The IP address at which users and nodes reach the controller."
  type        = string
}

variable "package" {
  description = "The package for pip: a wheel that the machine can fetch, with its extras."
  type        = string
}

variable "config" {
  description = "Sections of config.yaml, such as the cloud's own."
  type        = any
}

locals {
  unit = file("${path.module}/../../systemd/perdure-controller.service")
  # `config` may override everything except `listen`.
  config = merge({ default_store = "s3", local = false }, var.config, {
    listen = { host = "0.0.0.0", port = 8443, tls = "auto", advertise = "https://${var.address}:8443" }
  })
}

output "text" {
  description = "A cloud-config."
  value = templatefile("${path.module}/cloud-config.yaml.tftpl", {
    device      = var.device
    package     = var.package
    mount_state = base64encode(file("${path.module}/../../../controller/perdure/controller/clouds/bootstrap/mount_state.sh"))
    config      = base64encode(yamlencode(local.config))
    unit = base64encode(replace(local.unit, "\n[Service]\n", join("\n", [
      "RequiresMountsFor=/var/lib/perdure", "ConditionPathIsMountPoint=/var/lib/perdure", "", "[Service]", ""
    ])))
  })
}
