# A controller on a Compute Engine machine: its role, its disk, one open port, a static address.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

locals {
  role   = yamldecode(file("${path.module}/../../iam/gcp-controller.yaml"))
  region = join("-", slice(split("-", var.zone), 0, 2))
}

resource "google_service_account" "this" {
  project      = var.project
  account_id   = var.name
  display_name = "Perdure controller"
}

resource "google_project_iam_custom_role" "this" {
  project     = var.project
  role_id     = replace(var.name, "-", "_")
  title       = local.role.title
  description = local.role.description
  permissions = local.role.includedPermissions
}

resource "google_project_iam_member" "this" {
  project = var.project
  role    = google_project_iam_custom_role.this.id
  member  = "serviceAccount:${google_service_account.this.email}"
}

resource "google_compute_address" "this" {
  project = var.project
  name    = var.name
  region  = local.region
}

resource "google_compute_firewall" "this" {
  project       = var.project
  name          = var.name
  network       = var.network
  source_ranges = var.callers
  target_tags   = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["8443"]
  }
}

resource "google_compute_disk" "state" {
  project = var.project
  name    = "${var.name}-state"
  zone    = var.zone
  size    = var.disk_gib
  type    = "pd-balanced"

  lifecycle {
    prevent_destroy = true
  }
}

module "user_data" {
  source  = "../user-data"
  device  = "/dev/disk/by-id/google-perdure-state"
  address = google_compute_address.this.address
  package = var.package
  config  = var.config
}

resource "google_compute_instance" "this" {
  project      = var.project
  name         = var.name
  zone         = var.zone
  machine_type = var.machine_type
  tags         = [var.name]
  metadata     = { user-data = module.user_data.text }

  boot_disk {
    initialize_params {
      image = "ubuntu-os-cloud/ubuntu-2404-lts-amd64"
      size  = 20
    }
  }

  attached_disk {
    source      = google_compute_disk.state.id
    device_name = "perdure-state"
  }

  network_interface {
    network    = var.network
    subnetwork = var.subnet

    access_config {
      nat_ip = google_compute_address.this.address
    }
  }

  service_account {
    email  = google_service_account.this.email
    scopes = ["cloud-platform"] # its permissions are those of its role
  }

  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image] # a newer image must not replace the machine
  }
}
