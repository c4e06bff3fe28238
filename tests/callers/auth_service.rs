//! A service that decides over each request of a location.
