//! Where events go: lines for people, JSON.
