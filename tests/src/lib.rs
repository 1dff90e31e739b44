//! End-to-end tests, and the table of driver cases.
