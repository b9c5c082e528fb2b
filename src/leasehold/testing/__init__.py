"""What tests of locks need: worlds, faults, real servers, and a conformance kit. Public, for others' stores too."""
