//! Answers that always parse: which tokens may come next, so that JSON fits its schema and a tool call its definition.
//!
//! The automaton over the vocabulary is the crate `llguidance` (Earley parser, derivative-based lexer, a trie of all
//! tokens); here stand the grammars. Control tokens are not spelled: a grammar that wants one names its id, and no text
//! of a grammar can be written with one.

use std::fmt::Write;
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use self::watch::{Parameters, Watch};
use super::sampler::TokenSet;
use super::schema;
use super::tokenizer::Tokenizer;
use super::tools::{Tool, Tools};

mod call;
mod watch;

/// Why an answer cannot be constrained, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The vocabulary cannot be used.
    #[error("no grammar can be built on this tokenizer: {what}")]
    Vocabulary {
        /// What is wrong with it.
        what: String,
    },
    /// A schema with something that cannot be kept to token by token.
    #[error("an answer cannot be held to this schema: {what}")]
    Schema {
        /// What it is.
        what: String,
    },
    /// A definition with something that cannot be kept to token by token.
    #[error("a call cannot be held to its definition: {what}")]
    Definition {
        /// What it is.
        what: String,
    },
    /// Calls are to be held to definitions, but there are none, or not this one.
    #[error("there is no function `{name}` that a call could be held to")]
    Function {
        /// The name; empty if there is no function at all.
        name: String,
    },
    /// A token that the grammar forbids.
    #[error("token {token} does not fit the grammar here: {what}")]
    Token {
        /// The token.
        token: u32,
        /// What the parser said.
        what: String,
    },
    /// The parser gave up.
    #[error("the grammar cannot be followed further: {what}")]
    Parser {
        /// What it said.
        what: String,
    },
}

/// Whether and what a model shall call.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// What it likes; but if it begins a call, one that fits.
    #[default]
    Auto,
    /// Calls only, at least one.
    Required,
    /// This function, once.
    Function(String),
}

/// Grammars over a vocabulary. Making one walks through all tokens once; constraints come cheap from it.
pub struct Grammars {
    factory: ParserFactory,
    words: TokEnv,
    open: Option<u32>,
    close: Option<u32>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("open", &self.open).field("close", &self.close).finish_non_exhaustive()
    }
}

impl Grammars {
    /// For a model with `vocab` logits, whose answers end with the token `stop`.
    ///
    /// # Errors
    /// A stop token or a vocabulary that does not fit the tokenizer.
    pub fn new(tokenizer: &Tokenizer, vocab: usize, stop: u32) -> Result<Grammars, GrammarError> {
        let refused = |what: String| GrammarError::Vocabulary { what };
        if stop as usize >= vocab {
            return Err(refused(format!("the stop token is {stop}, but there are {vocab} tokens")));
        }
        let vocab_size = u32::try_from(vocab).map_err(|_| refused(format!("it has {vocab} tokens")))?;
        let mut words: Vec<Vec<u8>> = (0..vocab_size).map(|id| tokenizer.bytes(id).to_vec()).collect();
        for (text, id) in tokenizer.control_tokens().iter() {
            if let Some(word) = words.get_mut(id as usize) {
                *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], text.as_bytes()].concat();
            }
        }
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size, stop), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(|e| refused(e.to_string()))?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        Ok(Grammars { factory, words: env, open: tokenizer.id("<tool_call>"), close: tokenizer.id("</tool_call>") })
    }

    /// JSON that fits a schema. Line ends may stand before it, as behind reasoning. Numbers have 40 characters at most and
    /// two digits of an exponent, integers are ones that every reader takes for what they are.
    ///
    /// # Errors
    /// A schema that is none, or uses what cannot be kept to (`not`, `if`, remote references and the like).
    pub fn json_schema(&self, schema: &Value) -> Result<Constraint, GrammarError> {
        let grammar = format!("start: /\\n{{0,2}}/ json\njson: %json {}\n", spaced(schema));
        Ok(self.constraint(self.matcher(grammar)?, Watch::new(Parameters::new(), false), false))
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// None that a caller could cause.
    pub fn json_object(&self) -> Result<Constraint, GrammarError> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// Tool calls in Qwen3.5's form. A call has the parameters in the order of the definition, those that are not
    /// required or not; values that are texts have no `</parameter>` in them.
    ///
    /// # Errors
    /// No functions, or not the one that is wanted; schemas that cannot be kept to; a tokenizer without the tags.
    pub fn tool_calls(&self, tools: &Tools, choice: &ToolChoice) -> Result<Constraint, GrammarError> {
        let (open, _) = self.tags()?;
        let start = match choice {
            ToolChoice::Auto => "start: rest\n".to_owned(),
            ToolChoice::Required => format!("start: /\\n{{0,2}}/ <[{open}]> rest (\"\\n\" <[{open}]> rest)*\n"),
            ToolChoice::Function(_) => format!("start: /\\n{{0,2}}/ <[{open}]> rest\n"),
        };
        let (calls, parameters) = self.calls(tools, choice)?;
        let matcher = self.matcher(start + &calls).map_err(of_definition)?;
        Ok(self.constraint(matcher, Watch::new(parameters, true), *choice == ToolChoice::Auto))
    }

    /// Tool calls, or else JSON that fits a schema.
    ///
    /// # Errors
    /// As [`Grammars::tool_calls`] and [`Grammars::json_schema`].
    pub fn calls_or_schema(&self, tools: &Tools, schema: &Value) -> Result<Constraint, GrammarError> {
        let (open, _) = self.tags()?;
        let start = format!(
            "start: /\\n{{0,2}}/ (json | <[{open}]> rest (\"\\n\" <[{open}]> rest)*)\njson: %json {}\n",
            spaced(schema)
        );
        // What is wrong with it is not the functions' fault.
        self.json_schema(schema)?;
        let (calls, parameters) = self.calls(tools, &ToolChoice::Auto)?;
        let matcher = self.matcher(start + &calls).map_err(of_definition)?;
        Ok(self.constraint(matcher, Watch::new(parameters, true), false))
    }

    fn tags(&self) -> Result<(u32, u32), GrammarError> {
        let missing = || GrammarError::Vocabulary { what: "it has no <tool_call> and </tool_call>".into() };
        Ok((self.open.ok_or_else(missing)?, self.close.ok_or_else(missing)?))
    }

    /// The rule `rest`, of a call behind its opening tag, and which parameters may be JSON.
    fn calls(&self, tools: &Tools, choice: &ToolChoice) -> Result<(String, Parameters), GrammarError> {
        let (_, close) = self.tags()?;
        let wanted = |tool: &&Tool| !matches!(choice, ToolChoice::Function(name) if *name != tool.name);
        let functions: Vec<&Tool> = tools.tools().iter().filter(wanted).collect();
        if functions.is_empty() {
            let name = if let ToolChoice::Function(name) = choice { name.clone() } else { String::new() };
            return Err(GrammarError::Function { name });
        }
        let (mut grammar, mut parameters) = (call::RULES.to_owned(), Parameters::new());
        let names: Vec<String> = (0..functions.len()).map(|i| format!("f{i}")).collect();
        let _ = writeln!(grammar, "rest: \"\\n\" function \"</function>\\n\" <[{close}]>");
        let _ = writeln!(grammar, "function: {}", names.join(" | "));
        for (i, tool) in functions.iter().enumerate() {
            let json = call::function(&mut grammar, i, tool)?;
            parameters.extend(json.into_iter().map(|parameter| (tool.name.clone(), parameter)));
        }
        Ok((grammar, parameters))
    }

    fn constraint(&self, fresh: Matcher, watch: Watch, waits: bool) -> Constraint {
        Constraint {
            matcher: fresh.deep_clone(),
            fresh,
            open: self.open,
            waits,
            awake: !waits,
            words: self.words.clone(),
            begin: watch.clone(),
            watch,
        }
    }

    fn matcher(&self, grammar: String) -> Result<Matcher, GrammarError> {
        let parser = self.factory.create_parser(TopLevelGrammar::from_lark(grammar));
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            None => Ok(matcher),
            Some(what) => Err(GrammarError::Schema { what }),
        }
    }
}

/// White space between the words of JSON: a space, or a new line with some. A model that is held to something unfamiliar
/// likes to go on with spaces for ever, if it may.
const SPACE: &str = r"[\x20\x0A]|\x0A\x20{1,24}";

/// The largest integer that every reader of JSON takes for what it is (RFC 8259, section 6).
const SAFE: i64 = (1 << 53) - 1;

/// A schema for the crate, which looks for its own settings in it. Integers without bounds get those that readers have:
/// a model may write digits for ever, too. Those of a fraction or an exponent are watched.
fn spaced(schema: &Value) -> Value {
    // `true` allows what `{}` does, which has room for a setting.
    let mut schema = if *schema == Value::Bool(true) { json!({}) } else { schema.clone() };
    bound(&mut schema);
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("x-guidance".into(), json!({"whitespace_pattern": SPACE}));
    }
    schema
}

fn bound(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let kinds = schema::kinds(object);
            let whole = kinds.contains(&"integer") && !kinds.contains(&"number");
            if whole && !["enum", "const"].iter().any(|name| object.contains_key(*name)) {
                let given = |names: [&str; 2]| names.iter().find_map(|name| object.get(*name)).map(Value::as_f64);
                let least = given(["minimum", "exclusiveMinimum"]);
                let most = given(["maximum", "exclusiveMaximum"]);
                // One that is out there already keeps what the schema says, as odd as that is.
                let near = |bound: Option<Option<f64>>| bound.is_none_or(|x| x.is_some_and(|x| x.abs() < SAFE as f64));
                if least.is_none() && near(most) {
                    object.insert("minimum".into(), json!(-SAFE));
                }
                if most.is_none() && near(least) {
                    object.insert("maximum".into(), json!(SAFE));
                }
            }
            let values = ["enum", "const", "default", "examples"];
            object.iter_mut().filter(|(name, _)| !values.contains(&name.as_str())).for_each(|(_, inner)| bound(inner));
        }
        Value::Array(all) => all.iter_mut().for_each(bound),
        _ => {}
    }
}

fn of_definition(error: GrammarError) -> GrammarError {
    match error {
        GrammarError::Schema { what } => GrammarError::Definition { what },
        other => other,
    }
}

/// A literal of the grammar's language, which quotes as JSON does.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// What an answer is held to.
pub struct Constraint {
    fresh: Matcher,
    matcher: Matcher,
    /// The token that begins a call.
    open: Option<u32>,
    /// Whether it sleeps until a call begins.
    waits: bool,
    awake: bool,
    words: TokEnv,
    begin: Watch,
    watch: Watch,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("awake", &self.awake).finish_non_exhaustive()
    }
}

impl Constraint {
    /// From the beginning, for another answer.
    pub fn reset(&mut self) {
        self.matcher = self.fresh.deep_clone();
        self.watch = self.begin.clone();
        self.awake = !self.waits;
    }

    /// Which tokens may come next, the stop token among them where the answer may end. False if any may, in which case
    /// `allowed` is left alone.
    ///
    /// # Errors
    /// A parser that gave up, on a grammar too large for it.
    pub fn mask(&mut self, allowed: &mut TokenSet) -> Result<bool, GrammarError> {
        if !self.awake {
            return Ok(false);
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|e| GrammarError::Parser { what: e.to_string() })?;
        allowed.fill_from(mask.as_slice());
        if self.watch.is_wary() {
            let trie = self.words.tok_trie();
            let bad: Vec<u32> = allowed.iter().filter(|&token| self.watch.forbids(trie.token(token))).collect();
            if bad.len() < allowed.count() {
                bad.into_iter().for_each(|token| allowed.remove(token));
            } else {
                // What the grammar insists on it knows the end of; but zeros in front of what has to come have none.
                let zeros = |token: &u32| trie.token(*token).iter().all(|&byte| byte == b'0');
                let others: Vec<u32> = bad.iter().copied().filter(|token| !zeros(token)).collect();
                if !others.is_empty() {
                    bad.iter().filter(|token| zeros(token)).for_each(|&token| allowed.remove(token));
                }
            }
        }
        Ok(true)
    }

    /// Takes a token of the answer. The stop token is none.
    ///
    /// # Errors
    /// A token that [`Constraint::mask`] did not allow.
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        let opens = self.open == Some(token);
        if !self.awake {
            if opens {
                self.matcher = self.fresh.deep_clone();
                self.watch.call();
                self.awake = true;
            }
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|e| GrammarError::Token { token, what: e.to_string() })?;
        if opens {
            self.watch.call();
        } else {
            self.watch.push(self.words.tok_trie().token(token));
        }
        if self.waits && self.may_end() {
            self.awake = false;
        }
        Ok(())
    }

    /// Whether the answer may end here.
    pub fn may_end(&mut self) -> bool {
        !self.awake || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether nothing more may come.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.awake && self.matcher.is_stopped()
    }
}

#[cfg(test)]
mod adversary;
#[cfg(test)]
mod tests;
