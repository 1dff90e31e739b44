//! A strict reader of instruction streams (TXN).

/// Why a stream was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TxnError {}

/// A validated stream.
#[derive(Debug, Clone)]
pub struct Stream {}

impl Stream {
    /// Reads a stream, binary words or one 8-digit hexadecimal word a line, told apart by content.
    ///
    /// # Errors
    /// Where the stream stops making sense, and why.
    pub fn parse(file: &[u8]) -> Result<Self, TxnError> {
        let _ = file;
        todo!()
    }

    /// The stream as the device wants it, binary.
    pub fn bytes(&self) -> &[u8] {
        todo!()
    }

    /// For each buffer argument, in bytes from its address, the end of what the stream's descriptors can reach;
    /// index = argument.
    pub fn extents(&self) -> &[u64] {
        todo!()
    }
}
