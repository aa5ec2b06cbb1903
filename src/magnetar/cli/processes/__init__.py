"""Child processes of `magnetar up`: started, watched, ended."""
