//! Placeholder of layout.
