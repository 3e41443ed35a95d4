"""Workers that only live and die: the launcher is tested with them, without torch. `DFL_STUB` says what goes wrong."""
