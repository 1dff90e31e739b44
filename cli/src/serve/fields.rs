//! Fields of a JSON body, each of the kind that it has to be.

use super::error::ApiError;
use runtime::chat::kind_name;
use serde_json::{Map, Value};

/// An object's fields. A field that is null is not there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What stands before a field's name when it is named.
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// Those of a body.
    pub(super) fn of(value: &'a Value) -> Result<Fields<'a>, ApiError> {
        match value {
            Value::Object(map) => Ok(Fields { map, path: "" }),
            other => {
                let what = format!("the body is {}, wanted an object", kind(other));
                Err(ApiError::Invalid { param: None, what })
            }
        }
    }

    fn name(&self, field: &str) -> String {
        format!("{}{field}", self.path)
    }

    /// What is wrong with a field.
    pub(super) fn wrong(&self, field: &str, what: impl std::fmt::Display) -> ApiError {
        ApiError::field(self.name(field), what)
    }

    fn unlike(&self, field: &str, value: &Value, wanted: &str) -> ApiError {
        self.wrong(field, format_args!("it is {}, wanted {wanted}", kind(value)))
    }

    pub(super) fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    fn take<T>(
        &self,
        field: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.unlike(field, value, wanted))
    }

    pub(super) fn string(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.take(field, "a string", Value::as_str)
    }

    pub(super) fn boolean(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.take(field, "true or false", Value::as_bool)
    }

    pub(super) fn list(&self, field: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.take(field, "an array", Value::as_array)
    }

    /// An object's own fields, named with `path` before them.
    pub(super) fn object(&self, field: &str, path: &'a str) -> Result<Option<Fields<'a>>, ApiError> {
        Ok(self.take(field, "an object", Value::as_object)?.map(|map| Fields { map, path }))
    }

    pub(super) fn number(&self, field: &str) -> Result<Option<f32>, ApiError> {
        Ok(self.take(field, "a number", Value::as_f64)?.map(|number| number as f32))
    }

    /// A whole number, which some clients write as `5.0`.
    pub(super) fn whole(&self, field: &str, least: u64, most: u64) -> Result<Option<u64>, ApiError> {
        let whole = |value: &Value| {
            value.as_u64().or_else(|| {
                let number = value.as_f64()?;
                (number.fract() == 0.0 && (0.0..=9e15).contains(&number)).then_some(number as u64)
            })
        };
        let Some(value) = self.get(field) else { return Ok(None) };
        match whole(value).filter(|number| (least..=most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None if value.is_number() => {
                Err(self.wrong(field, format_args!("it is {value}, wanted a whole number from {least} to {most}")))
            }
            None => Err(self.unlike(field, value, "a whole number")),
        }
    }

    /// Refuses a field by name, unless it says what would be done anyway.
    pub(super) fn refuse(&self, field: &str, unless: &[Value], why: &str) -> Result<(), ApiError> {
        match self.get(field) {
            Some(value) if !unless.contains(value) => Err(self.wrong(field, why)),
            _ => Ok(()),
        }
    }
}

/// What sort of JSON value this is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    // What is not there is no value here.
    if value.is_null() { "null" } else { kind_name(value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_are_of_their_kind_or_named() {
        let body = json!({"s": "x", "n": 2.5, "w": 3.0, "b": true, "z": null, "o": {"in": 1}, "big": 1e30, "neg": -1});
        let fields = Fields::of(&body).unwrap();
        assert_eq!(fields.string("s"), Ok(Some("x")));
        assert_eq!(fields.string("z"), Ok(None));
        assert_eq!(fields.number("n"), Ok(Some(2.5)));
        assert_eq!(fields.whole("w", 1, 9), Ok(Some(3)));
        assert_eq!(fields.boolean("b"), Ok(Some(true)));
        for (result, said) in [
            (fields.string("n").map(|_| ()), "`n`: it is a number, wanted a string"),
            (fields.whole("n", 0, 9).map(|_| ()), "`n`: it is 2.5, wanted a whole number from 0 to 9"),
            (fields.whole("w", 4, 9).map(|_| ()), "`w`: it is 3.0, wanted a whole number from 4 to 9"),
            (fields.whole("big", 0, u64::MAX).map(|_| ()), "`big`: it is 1e+30"),
            (fields.whole("neg", 0, 9).map(|_| ()), "`neg`: it is -1"),
            (fields.whole("s", 0, 9).map(|_| ()), "`s`: it is a string, wanted a whole number"),
            (fields.list("o").map(|_| ()), "`o`: it is an object, wanted an array"),
            (fields.refuse("b", &[json!(false)], "no such thing"), "`b`: no such thing"),
        ] {
            let error = result.unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        assert_eq!(fields.refuse("b", &[json!(true)], "no"), Ok(()));
        let inner = fields.object("o", "o.").unwrap().unwrap();
        assert_eq!(inner.string("in").unwrap_err().to_string(), "`o.in`: it is a number, wanted a string");
        assert!(Fields::of(&json!([])).unwrap_err().to_string().contains("the body is an array"));
    }
}
