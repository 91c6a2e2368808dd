# A controller on an Azure virtual machine: its role, its disk, one open port, a static address.
terraform {
  required_version = ">= 1.5"
  required_providers {
    azurerm = {
      source  = "hashicorp/azurerm"
      version = ">= 4.0"
    }
  }
}

data "azurerm_subscription" "this" {}

data "azurerm_resource_group" "this" {
  name = var.resource_group
}

locals {
  role     = jsondecode(file("${path.module}/../../iam/azure-controller.json"))
  location = data.azurerm_resource_group.this.location
}

resource "azurerm_role_definition" "this" {
  name        = var.name
  scope       = data.azurerm_subscription.this.id
  description = local.role.Description

  permissions {
    actions          = local.role.Actions
    not_actions      = local.role.NotActions
    data_actions     = local.role.DataActions
    not_data_actions = local.role.NotDataActions
  }
}

resource "azurerm_role_assignment" "this" {
  scope              = data.azurerm_subscription.this.id
  role_definition_id = azurerm_role_definition.this.role_definition_resource_id
  principal_id       = azurerm_linux_virtual_machine.this.identity[0].principal_id
}

resource "azurerm_public_ip" "this" {
  name                = var.name
  resource_group_name = var.resource_group
  location            = local.location
  allocation_method   = "Static"
  sku                 = "Standard"
}

resource "azurerm_network_security_group" "this" {
  name                = var.name
  resource_group_name = var.resource_group
  location            = local.location

  security_rule {
    name                       = "users-and-nodes"
    priority                   = 100
    direction                  = "Inbound"
    access                     = "Allow"
    protocol                   = "Tcp"
    source_port_range          = "*"
    destination_port_range     = "8443"
    source_address_prefixes    = var.callers
    destination_address_prefix = "*"
  }
}

resource "azurerm_network_interface" "this" {
  name                = var.name
  resource_group_name = var.resource_group
  location            = local.location

  ip_configuration {
    name                          = "controller"
    subnet_id                     = var.subnet_id
    private_ip_address_allocation = "Dynamic"
    public_ip_address_id          = azurerm_public_ip.this.id
  }
}

resource "azurerm_network_interface_security_group_association" "this" {
  network_interface_id      = azurerm_network_interface.this.id
  network_security_group_id = azurerm_network_security_group.this.id
}

resource "azurerm_managed_disk" "state" {
  name                 = "${var.name}-state"
  resource_group_name  = var.resource_group
  location             = local.location
  storage_account_type = "StandardSSD_LRS"
  create_option        = "Empty"
  disk_size_gb         = var.disk_gib

  lifecycle {
    prevent_destroy = true
  }
}

module "user_data" {
  source  = "../user-data"
  device  = "/dev/disk/azure/scsi1/lun0,/dev/disk/azure/data/by-lun/0" # as SCSI, or as NVMe
  address = azurerm_public_ip.this.ip_address
  package = var.package
  config  = merge({ azure = { subscription = data.azurerm_subscription.this.subscription_id } }, var.config)
}

resource "azurerm_linux_virtual_machine" "this" {
  name                  = var.name
  resource_group_name   = var.resource_group
  location              = local.location
  size                  = var.size
  admin_username        = "ubuntu"
  network_interface_ids = [azurerm_network_interface.this.id]
  custom_data           = base64encode(module.user_data.text)

  admin_ssh_key {
    username   = "ubuntu"
    public_key = var.ssh_public_key
  }

  identity {
    type = "SystemAssigned"
  }

  os_disk {
    caching              = "ReadWrite"
    storage_account_type = "StandardSSD_LRS"
  }

  source_image_reference {
    publisher = "Canonical"
    offer     = "ubuntu-24_04-lts"
    sku       = "server"
    version   = "latest"
  }
}

resource "azurerm_virtual_machine_data_disk_attachment" "state" {
  managed_disk_id    = azurerm_managed_disk.state.id
  virtual_machine_id = azurerm_linux_virtual_machine.this.id
  lun                = 0
  caching            = "ReadOnly"
}
