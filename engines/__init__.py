"""What an engine is: profiles, artifact readers, and simulators that behave as the engines do.

No I/O here outside the artifact readers and the simulators.
"""
