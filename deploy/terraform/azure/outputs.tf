output "endpoint" {
  description = "PERDURE_ENDPOINT. PERDURE_TOKEN is /var/lib/perdure/token there; the fingerprint is in controller.json."
  value       = "https://${azurerm_public_ip.this.ip_address}:8443"
}

output "disk" {
  description = "What holds the state."
  value       = azurerm_managed_disk.state.id
}
