//! Writing TXN streams.
