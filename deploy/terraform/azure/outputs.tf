output "endpoint" {
  description = "PERDURE_ENDPOINT. On the machine, /var/lib/perdure/token contains PERDURE_TOKEN, and controller.json the fingerprint."
  value       = "https://${azurerm_public_ip.this.ip_address}:8443"
}

output "disk" {
  description = "The disk that holds the state."
  value       = azurerm_managed_disk.state.id
}
