//! What runs inside the test machines.
