//! What the agent may do, as packaged.
