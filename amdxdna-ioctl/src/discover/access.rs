//! Who may open a node, and who this process is.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Owner, group and mode of a node beside the process' own user and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Owner of the node: name, or number.
    pub owner: String,
    /// Group of the node: name, or number.
    pub group: String,
    /// Permission bits.
    pub mode: u32,
    /// The process' user: name, or number.
    pub user: String,
    /// The process' groups, the primary one first.
    pub groups: Vec<String>,
    /// The group's permission would be enough, and the process is not in it.
    pub joining_helps: bool,
}

impl Access {
    /// Reads the node's metadata and the process' credentials; names come from `/etc/passwd` and `/etc/group`.
    pub(super) fn of(node: &Path) -> Option<Access> {
        let metadata = fs::metadata(node).ok()?;
        let (users, groups) = (fs::read_to_string("/etc/passwd"), fs::read_to_string("/etc/group"));
        let (users, groups) = (users.unwrap_or_default(), groups.unwrap_or_default());
        let primary = rustix::process::getegid().as_raw();
        let mut mine = vec![primary];
        for group in rustix::process::getgroups().unwrap_or_default() {
            if !mine.contains(&group.as_raw()) {
                mine.push(group.as_raw());
            }
        }
        let mode = metadata.mode() & 0o7777;
        Some(Access {
            owner: name_of(&users, metadata.uid()),
            group: name_of(&groups, metadata.gid()),
            mode,
            user: name_of(&users, rustix::process::geteuid().as_raw()),
            groups: mine.iter().map(|&id| name_of(&groups, id)).collect(),
            joining_helps: mode & 0o060 == 0o060 && metadata.gid() != 0 && !mine.contains(&metadata.gid()),
        })
    }
}

/// The name of an id in a file of the form of `/etc/passwd` and `/etc/group`, whose third field it is.
fn name_of(table: &str, id: u32) -> String {
    let line = table.lines().map(|line| line.split(':')).find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then_some(name)
    });
    line.map_or_else(|| id.to_string(), str::to_owned)
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Access { owner, group, mode, user, groups, .. } = self;
        write!(f, "it is {owner}:{group} {mode:04o}, you are {user} in {}", groups.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_third_field() {
        let table = "root:x:0:\nrender:x:993:ann\nodd\n:x:5:\n";
        assert_eq!(name_of(table, 993), "render");
        assert_eq!(name_of(table, 0), "root");
        assert_eq!(name_of(table, 7), "7");
    }
}
