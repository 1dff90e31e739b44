//! What a line of a conversation asks for.

use crate::wishes::parse_thinking;
use runtime::chat::Thinking;
use std::path::PathBuf;

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nothing.
    Blank,
    /// A prompt.
    Say(String),
    /// Something for the program.
    Order(Order),
}

/// Something for the program.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// A picture for the next prompt.
    Image(PathBuf),
    /// A text in front of what follows in the next prompt: between pictures, say.
    Text(String),
    /// What a function that was called gave.
    Result(String),
    /// All but the system text is forgotten.
    Reset,
    /// The last question and its answer are taken back.
    Undo,
    /// The last question is answered again.
    Retry,
    /// Another system text; empty for none.
    System(String),
    Think(Thinking),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Help,
    Quit,
}

/// Every order, what it takes and what it does.
pub(crate) const ORDERS: &[(&str, &str, &str)] = &[
    ("image", "FILE", "show a JPEG or PNG picture with the next prompt"),
    ("text", "TEXT", "put a text between pictures of the next prompt"),
    ("undo", "", "take the last question and its answer back"),
    ("retry", "", "answer the last question again"),
    ("reset", "", "begin a new conversation"),
    ("system", "[TEXT]", "change the system text, or have none"),
    ("think", "on|off|N", "let the model think before it answers, for N tokens at most"),
    ("result", "TEXT", "what a function that was called gave"),
    ("save", "FILE", "write the conversation to a file"),
    ("load", "FILE", "go on with the conversation in a file"),
    ("stats", "", "what the conversation takes, and how fast the last answer was"),
    ("help", "", "show this"),
    ("quit", "", "leave, as Ctrl-D does"),
];

/// Reads a line. A prompt that begins with a slash is written with two.
///
/// # Errors
/// An order that there is not, or that lacks what it needs.
pub(crate) fn parse(line: &str) -> Result<Line, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(Line::Blank);
    }
    let Some(order) = line.strip_prefix('/') else { return Ok(Line::Say(line.to_owned())) };
    if order.starts_with('/') {
        return Ok(Line::Say(order.to_owned()));
    }
    let (name, rest) = order.split_once(char::is_whitespace).unwrap_or((order, ""));
    let rest = rest.trim();
    let Some((_, takes, _)) = ORDERS.iter().find(|(known, ..)| *known == name) else {
        let known: Vec<String> = ORDERS.iter().map(|(known, ..)| format!("/{known}")).collect();
        let known = known.join(" ");
        return Err(format!(
            "there is no `/{name}`: there are {known}; a prompt that begins with / is written with //"
        ));
    };
    if takes.is_empty() && !rest.is_empty() {
        return Err(format!("`/{name}` takes nothing, not {rest:?}"));
    }
    if rest.is_empty() && !takes.is_empty() && !takes.starts_with('[') {
        return Err(format!("`/{name}` needs {takes}"));
    }
    let (path, text) = (PathBuf::from(rest), rest.to_owned());
    Ok(Line::Order(match name {
        "image" => Order::Image(path),
        "text" => Order::Text(text),
        "result" => Order::Result(text),
        "reset" => Order::Reset,
        "undo" => Order::Undo,
        "retry" => Order::Retry,
        "system" => Order::System(text),
        "think" => match parse_thinking(rest) {
            Some(thinking) => Order::Think(thinking),
            None => return Err(format!("`/think {rest}`: expected on, off or the most tokens of it")),
        },
        "save" => Order::Save(path),
        "load" => Order::Load(path),
        "stats" => Order::Stats,
        "help" => Order::Help,
        _ => Order::Quit,
    }))
}

/// What can be typed, for people.
pub(crate) fn help() -> String {
    let row = |(name, takes, what): &(&str, &str, &str)| format!("  {:<16} {what}\n", format!("/{name} {takes}"));
    let orders: String = ORDERS.iter().map(row).collect();
    orders + "A line that ends with \\ goes on in the next one; Alt-Enter begins a new line. Ctrl-C stops an answer.\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_unless_they_begin_with_a_slash() {
        let order = |line: &str| parse(line).unwrap();
        assert_eq!(order(" \r\n"), Line::Blank);
        assert_eq!(order("what is this?\r\n"), Line::Say("what is this?".into()));
        assert_eq!(order("//etc is a folder"), Line::Say("/etc is a folder".into()));
        assert_eq!(order("/image a b.png\n"), Line::Order(Order::Image("a b.png".into())));
        assert_eq!(order("/system"), Line::Order(Order::System(String::new())));
        assert_eq!(order("/think 12"), Line::Order(Order::Think(Thinking::Budget(12))));
        assert_eq!(order("/quit"), Line::Order(Order::Quit));
    }

    #[test]
    fn a_mistyped_order_does_not_go_to_the_model() {
        for (line, said) in [
            ("/images are nice", "there is no `/images`: there are /image /text"),
            ("/image", "`/image` needs FILE"),
            ("/undo it", "`/undo` takes nothing, not \"it\""),
            ("/think hard", "`/think hard`: expected on"),
        ] {
            let found = parse(line).unwrap_err();
            assert!(found.starts_with(said), "{found}");
        }
    }

    #[test]
    fn every_order_is_understood_and_told() {
        for (name, takes, _) in ORDERS {
            let line = if takes.is_empty() { format!("/{name}") } else { format!("/{name} on") };
            assert!(matches!(parse(&line), Ok(Line::Order(_))), "{line}");
            assert!(help().contains(&format!("/{name}")));
        }
    }
}
