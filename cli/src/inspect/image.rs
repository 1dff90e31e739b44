//! A device image (PDI).

use super::operations::write;
use super::sheet::{Sheet, count};
use super::{Report, sha256};
use runtime::pdi::{Command, Encoding, Pdi, command_name, group_name};
use runtime::reference::is_reference;
use runtime::txn::Place;
use serde_json::{Value, json};

/// Explains a file that begins as a PDI.
pub(super) fn explain(bytes: &[u8], ops: bool) -> Result<Report, String> {
    let pdi = Pdi::parse(bytes).map_err(|error| format!("PDI: {error}"))?;
    let mut sheet = Sheet::default();
    sheet.line(format_args!("PDI, {}", count(bytes.len() as u64, "byte")));
    sheet.row("sha256", sha256(bytes));
    describe(&mut sheet, &pdi, bytes, ops);
    let mut report = json(&pdi, bytes, ops);
    if let Value::Object(fields) = &mut report {
        fields.insert("kind".to_owned(), json!("pdi"));
    }
    Ok(Report { text: sheet.finish(), json: report, damage: None })
}

/// The lines on a PDI, after its title.
pub(super) fn describe(sheet: &mut Sheet, pdi: &Pdi<'_>, bytes: &[u8], ops: bool) {
    sheet.row("image", format_args!("{}, id {:#x}, device {:#x}", pdi.name, pdi.image_id, pdi.id_code));
    let lengths = pdi.lengths.map(|words| words.to_string()).join(", ");
    let encoding = if pdi.encoding == Encoding::Plain { "plain" } else { "grouped" };
    sheet.row("commands", format_args!("{encoding} CDO, version {:#x}, {} words", pdi.cdo_version, pdi.cdo_words));
    sheet.row("words", format_args!("{lengths} (encrypted, unencrypted, total)"));
    let wrong: Vec<&str> = pdi.checksums.iter().filter(|sum| sum.stored != sum.computed).map(|sum| sum.table).collect();
    if wrong.is_empty() {
        sheet.row("checksums", format_args!("{} of {} come out", pdi.checksums.len(), pdi.checksums.len()));
    } else {
        sheet.row("checksums", format_args!("that of the {} does not come out, as usual here", wrong.join(", ")));
    }
    if is_reference(bytes) {
        sheet.row("kernel", "a reference kernel: the software NPU runs it, cores do not");
    }
    if pdi.tail > 0 {
        sheet.row("then", format_args!("{} bytes of memory images", pdi.tail));
    }
    let counts: Vec<[String; 2]> = pdi.counts().into_iter().map(|(name, count)| [name, count.to_string()]).collect();
    sheet.table(["command", "count"], &counts);
    if ops {
        let commands = pdi.commands.iter().map(|command| {
            let name = name(command);
            [format!("{:#08x}", command.offset), name, command_text(pdi, command)]
        });
        let groups = pdi.groups.iter().map(|group| {
            let entries = format!("{} entries", group.entries);
            [format!("{:#08x}", group.offset), format!("{} group", group_name(group.code)), entries]
        });
        sheet.table(["byte", "command", ""], &commands.chain(groups).collect::<Vec<_>>());
    }
}

fn name(command: &Command) -> String {
    match command_name(command.code) {
        "unknown" => format!("{:#x}", command.code),
        name => name.to_owned(),
    }
}

/// What a command does. Addresses have the array's base above the tile's; only the tile counts.
fn command_text(pdi: &Pdi<'_>, command: &Command) -> String {
    let words: Vec<u32> = pdi.payload(command).take(4).collect();
    match (command.code, words.as_slice()) {
        (0x103, [address, value]) => write(Place::new(*address), *value),
        (0x102, [address, mask, value]) => format!("{} = {value:#x} under {mask:#x}", Place::new(*address)),
        (0x101, [address, mask, value, ..]) => {
            format!("until {} is {value:#x} under {mask:#x}", Place::new(*address))
        }
        (0x105, [_, address, ..]) => {
            let data = command.words - 2;
            format!("{}: {}", Place::new(*address), count(data as u64, "word"))
        }
        (_, []) => String::new(),
        _ => {
            let more = if command.words > words.len() { " .." } else { "" };
            words.iter().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" ") + more
        }
    }
}

pub(super) fn json(pdi: &Pdi<'_>, bytes: &[u8], ops: bool) -> Value {
    let mut report = json!({
        "image": { "name": pdi.name, "id": pdi.image_id, "device": pdi.id_code },
        "encoding": if pdi.encoding == Encoding::Plain { "plain" } else { "grouped" },
        "cdo": { "version": pdi.cdo_version, "words": pdi.cdo_words },
        "lengths": pdi.lengths,
        "checksums": pdi.checksums.iter().map(|sum| {
            json!({ "of": sum.table, "offset": sum.offset, "stored": sum.stored, "computed": sum.computed })
        }).collect::<Vec<_>>(),
        "counts": pdi.counts(),
        "tail": pdi.tail,
        "reference": is_reference(bytes),
    });
    if ops && let Value::Object(fields) = &mut report {
        let commands = pdi.commands.iter().map(|command| {
            json!({ "offset": command.offset, "code": command.code, "name": name(command), "words": command.words,
                    "text": command_text(pdi, command) })
        });
        let groups = pdi.groups.iter().map(|group| {
            json!({ "offset": group.offset, "code": group.code, "name": group_name(group.code), "entries": group.entries })
        });
        fields.insert("ops".to_owned(), commands.chain(groups).collect());
    }
    report
}
