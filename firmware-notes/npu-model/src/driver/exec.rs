//! EXEC_CMD (`amdxdna_ctx.c`, `aie2_ctx.c`).

use std::sync::Arc;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, cmd_type};

use super::{Client, locked};
use crate::front::read_user;

impl Client {
    pub(super) fn exec_cmd(&self, a: &mut abi::ExecCmd) -> Result<(), Errno> {
        let one = a.cmd_count == 1;
        if a.ext != 0 || a.ext_flags != 0 || a.r#type != cmd_type::SUBMIT_EXEC_BUF {
            return Err(Errno::INVAL);
        }
        if a.arg_count as usize > abi::MAX_ARG_COUNT || !one {
            return Err(Errno::INVAL);
        }
        let mut handles = vec![0u32; a.arg_count as usize];
        read_user(a.args, bytemuck::cast_slice_mut(&mut handles))?;
        // One command: its handle stands where a pointer would.
        let handle = u32::try_from(a.cmd_handles).map_err(|_| Errno::INVAL)?;
        let command = self.bo(handle).filter(|bo| bo.packet().is_some()).ok_or(Errno::INVAL)?;
        let args = {
            let buffers = locked(&self.buffers);
            let found = handles.iter().map(|&handle| buffers.get(handle).ok_or(Errno::NOENT));
            found.collect::<Result<Vec<_>, _>>()?
        };
        self.device.resume()?;
        let context = self.context(a.hwctx)?;
        context.take_place()?;
        let twice = args.iter().enumerate().any(|(i, bo)| args[..i].iter().any(|other| Arc::ptr_eq(bo, other)));
        if twice {
            context.leave_place();
            return Err(Errno::ALREADY);
        }
        a.seq = context.submit(command, args)?;
        Ok(())
    }
}
