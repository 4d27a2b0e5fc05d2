"""Steps of traces on other devices and with other settings."""
