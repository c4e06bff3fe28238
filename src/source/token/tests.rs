//! Which tokens are believed, and for how long.
