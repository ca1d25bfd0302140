"""What the command line can do, one file a command. Nothing here decides or computes."""
