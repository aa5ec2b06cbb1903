"""What all commands share: options, targets, credentials, output."""
