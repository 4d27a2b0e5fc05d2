"""The question `fit`: whether a step fits a device."""
