"""The effects that machines ask for: writes, reads, timers, sends. The driver (`magnetar.runtime.driver`) carries them
out.
"""
