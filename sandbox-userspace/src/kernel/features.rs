//! Placeholder of features.
