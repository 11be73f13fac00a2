//! A JSON object that notices keys nobody asked for.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{LoadError, Result};

/// The keys of one config object that have not been read yet.
///
/// Each reader removes its key; [`Fields::finish`] complains about what is left, so that a key which changes the model
/// cannot be overlooked. `null` counts as absent.
#[derive(Debug)]
pub struct Fields {
    file: String,
    /// Dotted path of the object with a trailing dot, empty for the whole file.
    path: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Parses a file's bytes; `file` is the label used in errors.
    ///
    /// # Errors
    /// [`LoadError::Json`] if the bytes are not one JSON object.
    pub fn parse(file: impl Into<String>, bytes: &[u8]) -> Result<Self> {
        let file = file.into();
        match serde_json::from_slice(bytes) {
            Ok(map) => Ok(Self {
                file,
                path: String::new(),
                map,
            }),
            Err(source) => Err(LoadError::Json { file, source }),
        }
    }

    /// An object that was parsed already; `path` is what the names of its keys begin with.
    pub(crate) fn of(file: String, path: &str, map: Map<String, Value>) -> Self {
        Self {
            file,
            path: path.to_owned(),
            map,
        }
    }

    /// The label of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Whether the key is there, not null, and not read yet.
    pub fn has(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// Reads a key that may be absent.
    ///
    /// # Errors
    /// [`LoadError::BadValue`] if the value has another type.
    pub fn optional<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        match self.map.shift_remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let shown = value.to_string();
                serde_json::from_value(value)
                    .map(Some)
                    .map_err(|e| self.bad_value(key, format!("{shown} does not fit: {e}")))
            }
        }
    }

    /// Reads a key that must be there.
    ///
    /// # Errors
    /// [`LoadError::MissingKey`] if it is absent or null, [`LoadError::BadValue`] if it has another type.
    pub fn required<T: DeserializeOwned>(&mut self, key: &str) -> Result<T> {
        match self.optional(key)? {
            Some(value) => Ok(value),
            None => Err(LoadError::MissingKey {
                file: self.file.clone(),
                key: self.full(key),
            }),
        }
    }

    /// Reads a size that must be there and at least 1.
    ///
    /// # Errors
    /// As [`Fields::required`], and [`LoadError::BadValue`] for 0.
    pub fn size(&mut self, key: &str) -> Result<usize> {
        match self.required(key)? {
            0 => Err(self.bad_value(key, "must be at least 1, is 0".into())),
            size => Ok(size),
        }
    }

    /// Reads a finite number above 0 that must be there.
    ///
    /// # Errors
    /// As [`Fields::required`], and [`LoadError::BadValue`] for other numbers.
    pub fn positive(&mut self, key: &str) -> Result<f64> {
        let number: f64 = self.required(key)?;
        if number > 0.0 && number.is_finite() {
            Ok(number)
        } else {
            Err(self.bad_value(key, format!("must be above 0, is {number}")))
        }
    }

    /// Reads a nested object that may be absent.
    ///
    /// # Errors
    /// [`LoadError::BadValue`] if it is not an object.
    pub fn object(&mut self, key: &str) -> Result<Option<Self>> {
        let map: Option<Map<String, Value>> = self.optional(key)?;
        Ok(map.map(|map| Self {
            file: self.file.clone(),
            path: format!("{}{key}.", self.path),
            map,
        }))
    }

    /// Refuses any value of the key except `only`; an absent key is fine.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`] for another value.
    pub fn only(&mut self, key: &str, only: &Value) -> Result<()> {
        match self.optional::<Value>(key)? {
            Some(got) if got != *only => Err(self.unsupported(key, &got, &only.to_string())),
            _ => Ok(()),
        }
    }

    /// Drops keys that do not change the forward pass.
    pub fn ignore(&mut self, keys: &[&str]) {
        for key in keys {
            self.map.shift_remove(*key);
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// [`LoadError::UnknownKeys`] if a key was neither read nor ignored.
    pub fn finish(self) -> Result<()> {
        self.check_empty()
    }

    /// As [`Fields::finish`], for a reader that still has errors to name its keys by.
    pub(crate) fn check_empty(&self) -> Result<()> {
        if self.map.is_empty() {
            return Ok(());
        }
        let keys: Vec<String> = self.map.keys().map(|key| self.full(key)).collect();
        Err(LoadError::UnknownKeys {
            file: self.file.clone(),
            keys: keys.join(", "),
        })
    }

    /// The error for a value that is valid in general but not implemented.
    pub fn unsupported(&self, key: &str, got: &Value, supported: &str) -> LoadError {
        LoadError::Unsupported {
            file: self.file.clone(),
            key: self.full(key),
            got: got.to_string(),
            supported: supported.to_owned(),
        }
    }

    /// The error for a value that contradicts its type or another key.
    pub fn bad_value(&self, key: &str, why: String) -> LoadError {
        LoadError::BadValue {
            file: self.file.clone(),
            key: self.full(key),
            why,
        }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }
}
