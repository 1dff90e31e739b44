//! The prompt around a question, as Qwen3.5's chat template writes it.

/// Before the pad tokens of a picture.
pub(super) const VISION_START: &str = "<|vision_start|>";
/// Stands for one row of a picture's embedding.
pub(super) const IMAGE_PAD: &str = "<|image_pad|>";
/// After the pad tokens of a picture.
pub(super) const VISION_END: &str = "<|vision_end|>";

/// The prompt of one user turn. `images` holds the tokens of each picture; pictures come before the text.
///
/// Texts are trimmed as the template's `trim` does it. Control tokens in them are not escaped: a user who types
/// `<|im_end|>` gets the token, as with the reference.
#[must_use]
pub fn prompt(system: Option<&str>, images: &[usize], text: &str, thinking: bool) -> String {
    let mut user = String::new();
    for &tokens in images {
        user.push_str(VISION_START);
        for _ in 0..tokens {
            user.push_str(IMAGE_PAD);
        }
        user.push_str(VISION_END);
    }
    user.push_str(text);
    let mut out = String::with_capacity(user.len() + 128);
    if let Some(system) = system {
        message(&mut out, "system", system);
    }
    message(&mut out, "user", &user);
    out.push_str("<|im_start|>assistant\n<think>\n");
    if !thinking {
        out.push_str("\n</think>\n\n");
    }
    out
}

fn message(out: &mut String, role: &str, text: &str) {
    for part in ["<|im_start|>", role, "\n", trim(text), "<|im_end|>\n"] {
        out.push_str(part);
    }
}

/// Python's `str.strip`: Unicode white space, and the four separators U+001C..U+001F that Rust does not count.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected strings are what the checkpoint's Jinja template gives.

    #[test]
    fn thinking_off_closes_the_reasoning() {
        assert_eq!(
            prompt(None, &[], "Hello", false),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        assert_eq!(
            prompt(None, &[], "Hello", true),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
    }

    #[test]
    fn a_system_text_comes_first_and_both_are_trimmed() {
        assert_eq!(
            prompt(Some(" Be brief.\n"), &[], "\u{1f}\u{a0} Hi\u{2003}\n", true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
        assert!(
            prompt(Some(""), &[], "", true).starts_with("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|im_end|>")
        );
    }

    #[test]
    fn pictures_come_before_the_text_with_nothing_between() {
        assert_eq!(
            prompt(None, &[2, 1], " what? ", true),
            "<|im_start|>user\n<|vision_start|><|image_pad|><|image_pad|><|vision_end|><|vision_start|><|image_pad|>\
             <|vision_end|> what?<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
    }
}
