"""The engine for logs that outgrow one machine."""
