//! What the operation codes are called.

/// The name of an operation code, as the tools spell it.
#[must_use]
pub fn code_name(code: u8) -> &'static str {
    match code {
        0 => "WRITE32",
        1 => "BLOCKWRITE",
        2 => "BLOCKSET",
        3 => "MASKWRITE",
        4 => "MASKPOLL",
        5 => "NOOP",
        6 => "PREEMPT",
        7 => "MASKPOLL_BUSY",
        8 => "LOADPDI",
        9 => "LOAD_PM_START",
        10 => "CREATE_SCRATCHPAD",
        11 => "UPDATE_STATE_TABLE",
        12 => "UPDATE_REG",
        13 => "UPDATE_SCRATCH",
        14 => "CONFIG_SHIMDMA_BD",
        15 => "CONFIG_SHIMDMA_DMABUF_BD",
        128 => "TCT",
        129 => "DDR_PATCH",
        130 => "READ_REGS",
        131 => "RECORD_TIMER",
        132 => "MERGE_SYNC",
        200 => "LOAD_PM_END",
        _ => "unknown",
    }
}
