//! `cargo xtask abi`: the crate's table of sizes, offsets, request words and constants against a C compiler's reading of
//! the kernel's headers.

use amdxdna_ioctl::abi::layout::{Constant, Request, Struct, TABLE, Table};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "amdxdna_accel.h";

pub(crate) const HELP: &str = "\
cargo xtask abi [--header PATH]
  sizes, offsets, request words and constants of amdxdna-ioctl against a C compiler's reading of the kernel's header:
  the one given, else this machine's, else Debian's, which is fetched";

/// What came of a comparison.
pub(crate) enum Compared {
    Same,
    Different,
    /// There is nothing to compare with, for this reason.
    Nothing(String),
}

/// Runs the comparison; `Ok(true)` where it holds, and where it cannot be made (which is said).
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let asked = match arguments {
        [] => None,
        [flag, path] if flag == "--header" => Some(PathBuf::from(path)),
        _ => return Err(format!("usage: {HELP}")),
    };
    Ok(match compared(asked.as_deref())? {
        Compared::Same => true,
        Compared::Different => false,
        Compared::Nothing(why) => {
            crate::print(&format!("abi: SKIP, {why}\n"));
            true
        }
    })
}

/// Compares with the header given; else with the first that is found; else, or where that one lacks something, with that
/// of Debian's package, which is fetched.
pub(crate) fn compared(asked: Option<&Path>) -> Result<Compared, String> {
    let found = match asked {
        Some(path) if !path.is_file() => return Err(format!("--header {}: no such file", path.display())),
        Some(path) => Some(path.to_owned()),
        None => candidates().into_iter().find(|path| path.is_file()),
    };
    let Some(compiler) = compiler() else {
        return Ok(Compared::Nothing("no C compiler (cc, gcc or clang, or $CC)".to_owned()));
    };
    let mut installed = None;
    if let Some(header) = found {
        match read(&header, &compiler) {
            Ok((answers, unknown)) if asked.is_some() || unknown.is_empty() => {
                return said(&header, &answers, &unknown);
            }
            Err(why) if asked.is_some() => return Err(why),
            // An older system's: what it has is compared, if there is no better one.
            read => installed = Some((header, read)),
        }
    }
    match (crate::vm::kernel_headers(&crate::check::root()), installed) {
        (Ok(headers), _) => {
            let header = headers.join("drm").join(NAME);
            let (answers, unknown) = read(&header, &compiler)?;
            said(&header, &answers, &unknown)
        }
        (Err(_), Some((header, read))) => {
            let (answers, unknown) = read?;
            said(&header, &answers, &unknown)
        }
        (Err(why), None) => Ok(Compared::Nothing(format!(
            "no {NAME} here: install linux-libc-dev of Linux 6.19 or later, or give --header PATH (in a kernel tree: \
             include/uapi/drm/{NAME}); to fetch it: {why}"
        ))),
    }
}

/// What C says of a header, and the names that it lacks.
fn read(header: &Path, compiler: &OsStr) -> Result<(Answers, Vec<&'static str>), String> {
    let scratch = Scratch::new()?;
    let probe = Probe { header, compiler, scratch: &scratch.0 };
    match probe.run(&TABLE.into()) {
        Ok(answers) => Ok((answers, Vec::new())),
        Err(whole) => probe.run_one_by_one(&TABLE).ok_or(whole),
    }
}

/// Prints the comparison.
fn said(header: &Path, answers: &Answers, unknown: &[&str]) -> Result<Compared, String> {
    let (text, fine) = compare(header, answers, unknown);
    crate::print(&text);
    Ok(if fine { Compared::Same } else { Compared::Different })
}

/// Where the header may lie.
fn candidates() -> Vec<PathBuf> {
    let mut found = vec![
        PathBuf::from("/usr/include/drm").join(NAME),
        PathBuf::from("/usr/include/libdrm").join(NAME),
        PathBuf::from("/usr/local/include/drm").join(NAME),
    ];
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim());
    for tree in ["build", "source"] {
        found.push(modules.join(tree).join("include/uapi/drm").join(NAME));
    }
    if let Ok(trees) = fs::read_dir("/usr/src") {
        found.extend(trees.flatten().map(|tree| tree.path().join("include/uapi/drm").join(NAME)));
    }
    found
}

fn compiler() -> Option<OsString> {
    let wanted = std::env::var_os("CC").into_iter().chain(["cc", "gcc", "clang"].map(OsString::from));
    wanted
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|answer| answer.status.success()))
}

/// A directory that is removed again.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("xtask-abi-{}", std::process::id()));
        fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What one probe asks for.
#[derive(Default)]
struct Items {
    structs: Vec<Struct>,
    requests: Vec<Request>,
    constants: Vec<Constant>,
}

impl From<Table> for Items {
    fn from(table: Table) -> Self {
        Items {
            structs: table.structs.to_vec(),
            requests: table.requests.to_vec(),
            constants: table.constants.to_vec(),
        }
    }
}

/// What C says, by what was asked: `sizeof X`, `offsetof X.f`, ...
type Answers = BTreeMap<String, u64>;

struct Probe<'a> {
    header: &'a Path,
    compiler: &'a OsStr,
    scratch: &'a Path,
}

impl Probe<'_> {
    /// Compiles and runs one program that prints all items; the error is the compiler's.
    fn run(&self, items: &Items) -> Result<Answers, String> {
        let directory = self.header.parent().unwrap_or(Path::new("."));
        let source = self.scratch.join("probe.c");
        let program = self.scratch.join("probe");
        let text = program_text(self.header, items);
        fs::write(&source, text).map_err(|error| format!("{}: {error}", source.display()))?;
        let mut compile = Command::new(self.compiler);
        // Headers of a kernel tree mark pointers with an annotation that exported headers have lost, and use one that an
        // older system's <linux/stddef.h> does not define.
        compile.args(["-w", "-D__user=", "-D__counted_by(member)=", "-I"]).arg(directory);
        if let Some(above) = directory.parent() {
            compile.arg("-I").arg(above);
        }
        let compiled = compile.arg("-o").arg(&program).arg(&source).output().map_err(|error| error.to_string())?;
        if !compiled.status.success() {
            let errors = String::from_utf8_lossy(&compiled.stderr);
            let first: Vec<&str> = errors.lines().take(6).collect();
            return Err(format!("{} does not compile: {}", self.header.display(), first.join("\n")));
        }
        let answer = Command::new(&program).output().map_err(|error| format!("the probe: {error}"))?;
        let lines = String::from_utf8_lossy(&answer.stdout).into_owned();
        let value = |line: &str| {
            let (what, value) = line.rsplit_once(' ')?;
            Some((what.to_owned(), value.parse().ok()?))
        };
        Ok(lines.lines().filter_map(value).collect())
    }

    /// As [`Probe::run`], a program an item, for headers that lack some; `None` if they lack all.
    fn run_one_by_one(&self, table: &Table) -> Option<(Answers, Vec<&'static str>)> {
        let mut answers = Answers::new();
        let mut unknown = Vec::new();
        let structs = table.structs.iter().map(|&it| (it.c_name, Items { structs: vec![it], ..Items::default() }));
        let requests = table.requests.iter().map(|&it| (it.c_name, Items { requests: vec![it], ..Items::default() }));
        let constants =
            table.constants.iter().map(|&it| (it.c_name, Items { constants: vec![it], ..Items::default() }));
        for (name, items) in structs.chain(requests).chain(constants) {
            match self.run(&items) {
                Ok(more) => answers.extend(more),
                Err(_) => unknown.push(name),
            }
        }
        (!answers.is_empty()).then_some((answers, unknown))
    }
}

fn program_text(header: &Path, items: &Items) -> String {
    let mut text = format!(
        "#include <stdio.h>\n#include <stddef.h>\n#include <fcntl.h>\n#include \"{}\"\n#define SAY(what, value) \
         printf(what \" %llu\\n\", (unsigned long long)(value))\nint main(void)\n{{\n",
        header.display()
    );
    // Writing to a string does not fail.
    for s in &items.structs {
        let _ = writeln!(text, "SAY(\"sizeof {0}\", sizeof(struct {0}));", s.c_name);
        for f in s.fields {
            let (s, f) = (s.c_name, f.c_name());
            let _ = writeln!(text, "SAY(\"offsetof {s}.{f}\", offsetof(struct {s}, {f}));");
            let _ = writeln!(text, "SAY(\"sizeof {s}.{f}\", sizeof(((struct {s} *)0)->{f}));");
        }
    }
    for r in &items.requests {
        let _ = writeln!(text, "SAY(\"request {0}\", (unsigned int)({0}));", r.c_name);
    }
    for c in &items.constants {
        let _ = writeln!(text, "SAY(\"constant {0}\", {0});", c.c_name);
    }
    text.push_str("return 0;\n}\n");
    text
}

/// The comparison as text, and whether it holds.
fn compare(header: &Path, answers: &Answers, unknown: &[&str]) -> (String, bool) {
    let mut text = String::new();
    let (mut compared, mut wrong) = (0, 0);
    let mut check = |text: &mut String, what: String, ours: u64, may_grow: bool| {
        let Some(&theirs) = answers.get(&what) else { return };
        compared += 1;
        if theirs == ours {
        } else if may_grow && theirs > ours {
            let _ = writeln!(text, "abi: {what} is {theirs} there and {ours} here: later members, which are left out");
        } else {
            wrong += 1;
            let _ = writeln!(text, "abi: {what} is {theirs:#x} there and {ours:#x} here");
        }
    };
    for s in TABLE.structs {
        // An ioctl's own argument may not grow without its request word, which is compared too.
        check(&mut text, format!("sizeof {}", s.c_name), s.size as u64, true);
        for f in s.fields {
            check(&mut text, format!("offsetof {}.{}", s.c_name, f.c_name()), f.offset as u64, false);
            check(&mut text, format!("sizeof {}.{}", s.c_name, f.c_name()), f.size as u64, false);
        }
    }
    for r in TABLE.requests {
        check(&mut text, format!("request {}", r.c_name), u64::from(r.value), false);
    }
    for c in TABLE.constants {
        check(&mut text, format!("constant {}", c.c_name), c.value, false);
    }
    if !unknown.is_empty() {
        let _ = writeln!(text, "abi: the header is another version's, it has no {}", unknown.join(", "));
    }
    let verdict = if wrong == 0 { "all as here".to_owned() } else { format!("{wrong} DIFFER") };
    let _ = writeln!(text, "abi: {compared} numbers of {}: {verdict}", header.display());
    (text, wrong == 0 && compared > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What C would say if it agreed.
    fn agreeing() -> Answers {
        let mut answers = Answers::new();
        for s in TABLE.structs {
            answers.insert(format!("sizeof {}", s.c_name), s.size as u64);
            for f in s.fields {
                answers.insert(format!("offsetof {}.{}", s.c_name, f.c_name()), f.offset as u64);
                answers.insert(format!("sizeof {}.{}", s.c_name, f.c_name()), f.size as u64);
            }
        }
        answers.extend(TABLE.requests.iter().map(|r| (format!("request {}", r.c_name), u64::from(r.value))));
        answers.extend(TABLE.constants.iter().map(|c| (format!("constant {}", c.c_name), c.value)));
        answers
    }

    #[test]
    fn differences_are_found() {
        let header = Path::new("h");
        let same = agreeing();
        assert!(compare(header, &same, &[]).1);
        for what in ["offsetof amdxdna_drm_exec_cmd.seq", "request DRM_IOCTL_GET_CAP", "constant AMDXDNA_BO_CMD"] {
            let mut other = same.clone();
            *other.get_mut(what).unwrap() += 1;
            let (text, fine) = compare(header, &other, &[]);
            assert!(!fine && text.contains(what), "{text}");
        }
        let mut grown = same.clone();
        *grown.get_mut("sizeof amdxdna_drm_hwctx_entry").unwrap() += 16;
        assert!(compare(header, &grown, &[]).1);
        *grown.get_mut("sizeof amdxdna_drm_hwctx_entry").unwrap() -= 32;
        assert!(!compare(header, &grown, &[]).1);
        assert!(!compare(header, &Answers::new(), &[]).1, "nothing compared is no agreement");
    }

    #[test]
    fn the_probe_asks_for_every_number() {
        let text = program_text(Path::new("/x/amdxdna_accel.h"), &TABLE.into());
        assert_eq!(text.matches("SAY(\"").count(), agreeing().len());
        assert!(!text.contains("r#"), "names are C's");
    }
}
