//! What can go wrong on the device.

/// A failure of the device, the driver or a command.
#[derive(Debug, thiserror::Error)]
pub enum NpuError {
    /// The node could not be opened.
    #[error("open {node}: {errno}")]
    Open {
        /// The node.
        node: String,
        /// The errno of `open(2)`.
        errno: amdxdna_ioctl::Errno,
    },
}
