//! The PDI.
