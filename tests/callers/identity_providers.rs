//! Tokens whose keys an identity provider publishes.
