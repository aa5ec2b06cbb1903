"""What machines ask of the world: writes, reads, timers, sends. The driver (`magnetar.runtime.driver`) carries them out."""
