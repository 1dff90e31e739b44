//! What clients do, and what they may expect.

use super::client::{Asked, request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const CHAT: &str = "/v1/chat/completions";
const JSON: &str = "application/json";

/// Questions, some of which follow one another.
const QUESTIONS: [&[&str]; 4] = [
    &["What is 7 plus 5?"],
    &["What is qwen35-direct?"],
    &["What is 2 plus 2?", "And what is 3 plus 4?"],
    &["Hello!", "What can you do?", "What is 1 plus 1?"],
];

/// Conversations with the answers that the server gave while nobody else asked.
#[derive(Debug)]
pub(super) struct Known {
    conversations: Vec<(Vec<Value>, String)>,
}

/// What happened.
#[derive(Debug, Default)]
pub(super) struct Tally {
    counts: BTreeMap<&'static str, u64>,
    /// Times of whole answers.
    whole: Vec<Duration>,
    /// Times to the first event of a stream.
    first: Vec<Duration>,
    /// How often a full queue turned one away.
    refused: u64,
    pub(super) wrong: Vec<String>,
}

impl Known {
    /// Asks everything once.
    pub(super) fn learn(at: &str) -> Result<Known, String> {
        let mut conversations = Vec::new();
        for questions in QUESTIONS {
            let mut messages = Vec::new();
            for question in questions {
                messages.push(json!({"role": "user", "content": question}));
                let body = json!({"messages": messages}).to_string();
                let (status, answer) = Asked::send(at, &request(CHAT, JSON, &body))?.whole()?;
                let said = answer["choices"][0]["message"]["content"].as_str();
                let said = said.ok_or_else(|| format!("{question}: {status}: {answer}"))?.to_owned();
                conversations.push((messages.clone(), said.clone()));
                messages.push(json!({"role": "assistant", "content": said}));
            }
        }
        Ok(Known { conversations })
    }

    /// One client's visit.
    pub(super) fn ask(&self, at: &str, seed: u64, tally: &mut Tally) {
        let mut chance = Chance(seed | 1);
        let (messages, wanted) = &self.conversations[chance.below(self.conversations.len() as u64) as usize];
        let ask = |stream: bool| json!({"messages": messages, "stream": stream}).to_string();
        let (name, result) = match chance.below(100) {
            0..40 => ("whole", self.whole(at, &ask(false), wanted, tally)),
            40..62 => ("stream", stream(at, &ask(true), wanted, Duration::ZERO, tally)),
            62..68 => {
                let pause = Duration::from_millis(1 + chance.below(30));
                ("slow", stream(at, &ask(true), wanted, pause, tally))
            }
            68..78 => ("gone in mid answer", gone(at, chance.below(4), tally)),
            78..86 => ("gone at once", leave(at, &request(CHAT, JSON, &ask(chance.below(2) == 0)), &mut chance)),
            86..95 => ("bad", bad(at, chance.below(6), tally)),
            _ => {
                let whole = request(CHAT, JSON, &ask(false));
                let cut = chance.below(whole.len() as u64) as usize;
                ("half", leave(at, &whole[..cut], &mut chance))
            }
        };
        *tally.counts.entry(name).or_default() += 1;
        if let Err(why) = result {
            tally.wrong.push(format!("{name}: {why}"));
        }
    }

    fn whole(&self, at: &str, body: &str, wanted: &str, tally: &mut Tally) -> Result<(), String> {
        let start = Instant::now();
        let (status, answer) = patiently(tally, || Asked::send(at, &request(CHAT, JSON, body))?.whole(), |got| got.0)?;
        tally.whole.push(start.elapsed());
        let said = &answer["choices"][0]["message"]["content"];
        if status == 200 && *said == wanted { Ok(()) } else { Err(format!("{status}: {answer}, wanted {wanted:?}")) }
    }
}

/// Asks again as long as the queue is full.
fn patiently<T>(
    tally: &mut Tally,
    mut ask: impl FnMut() -> Result<T, String>,
    status: impl Fn(&T) -> u16,
) -> Result<T, String> {
    for _ in 0..2000 {
        let got = ask()?;
        if status(&got) != 503 {
            return Ok(got);
        }
        tally.refused += 1;
        std::thread::sleep(Duration::from_millis(60));
    }
    Err("the queue has been full for ever".into())
}

fn begun(at: &str, body: &str, tally: &mut Tally) -> Result<Asked, String> {
    let begin = || {
        let mut asked = Asked::send(at, &request(CHAT, JSON, body))?;
        let status = asked.begin()?;
        Ok((asked, status))
    };
    match patiently(tally, begin, |(_, status)| *status)? {
        (asked, 200) => Ok(asked),
        (asked, status) => Err(format!("{status}: {:?}", asked.whole())),
    }
}

fn stream(at: &str, body: &str, wanted: &str, pause: Duration, tally: &mut Tally) -> Result<(), String> {
    let start = Instant::now();
    let mut asked = begun(at, body, tally)?;
    let (mut text, mut done) = (String::new(), false);
    while let Some(event) = asked.event()? {
        if text.is_empty() && pause.is_zero() {
            tally.first.push(start.elapsed());
        }
        done = event == "[DONE]";
        if !done {
            let event: Value = serde_json::from_str(&event).map_err(|error| format!("{error}: {event}"))?;
            text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or_default());
        }
        std::thread::sleep(pause);
    }
    if done && text == wanted { Ok(()) } else { Err(format!("{text:?}, done: {done}, wanted {wanted:?}")) }
}

/// Reads a few events of a long answer, and goes.
fn gone(at: &str, events: u64, tally: &mut Tally) -> Result<(), String> {
    let messages = json!([{"role": "user", "content": "Tell me everything."}]);
    let body = json!({"messages": messages, "stream": true, "temperature": 3, "seed": events}).to_string();
    let mut asked = begun(at, &body, tally)?;
    for _ in 0..events {
        asked.event()?;
    }
    Ok(())
}

/// Sends and goes, at once or a little later.
fn leave(at: &str, bytes: &str, chance: &mut Chance) -> Result<(), String> {
    let asked = Asked::send(at, bytes)?;
    std::thread::sleep(Duration::from_millis(chance.below(30)));
    drop(asked);
    Ok(())
}

fn bad(at: &str, which: u64, tally: &mut Tally) -> Result<(), String> {
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let (path, kind, body, wanted) = match which {
        0 => (CHAT, JSON, "{\"messages\": [", 400),
        1 => (CHAT, JSON, "{\"messages\": [{\"role\": \"bot\"}]}", 400),
        2 => (CHAT, "text/plain", "{}", 415),
        3 => ("/v1/nothing", JSON, "{}", 404),
        4 => (CHAT, JSON, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"temperature\": -5}", 400),
        _ => (CHAT, JSON, large.as_str(), 413),
    };
    let (status, answer) = patiently(tally, || Asked::send(at, &request(path, kind, body))?.whole(), |got| got.0)?;
    let named = answer["error"]["message"].is_string();
    if status == wanted && named { Ok(()) } else { Err(format!("{status}: {answer}, wanted {wanted}")) }
}

impl Tally {
    pub(super) fn add(&mut self, other: Tally) {
        other.counts.into_iter().for_each(|(name, count)| *self.counts.entry(name).or_default() += count);
        self.whole.extend(other.whole);
        self.first.extend(other.first);
        self.refused += other.refused;
        self.wrong.extend(other.wrong);
    }

    pub(super) fn all(&self) -> u64 {
        self.counts.values().sum()
    }

    /// Counts, and times by rank.
    pub(super) fn table(&mut self) -> String {
        let counts: Vec<String> = self.counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let mut out = format!("mix        {}; turned away {} times\n", counts.join(", "), self.refused);
        for (name, times) in [("answer", &mut self.whole), ("first word", &mut self.first)] {
            times.sort_unstable();
            let at = |share: f64| {
                let rank = (times.len().saturating_sub(1) as f64 * share).round() as usize;
                times.get(rank).map_or(0.0, Duration::as_secs_f64) * 1e3
            };
            let [p50, p90, p99, most] = [0.5, 0.9, 0.99, 1.0].map(at);
            out += &format!("{name:<10} {p50:.0} ms half, {p90:.0} ms p90, {p99:.0} ms p99, {most:.0} ms at most\n");
        }
        out
    }
}

/// Numbers that look like chance.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end.max(1)
    }
}
