"""Reading what artifact files say of themselves: `read` in a child process, `child` is that process."""
