//! Why a model could not be loaded.

/// What can go wrong between files and a model that runs.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be read.
    #[error("cannot read {file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A place holds no weights under either of the two known names.
    #[error(
        "{place} holds neither model.safetensors nor model.safetensors.index.json; put the checkpoint's weights there"
    )]
    NoWeights {
        /// The directory or the embedded set.
        place: String,
    },
    /// A file is not the JSON object it must be.
    #[error("{file} is not a JSON object: {source}")]
    Json {
        /// The file.
        file: String,
        /// Where the parser stopped.
        source: serde_json::Error,
    },
    /// A weight file is cut short or its header does not describe it.
    #[error("{file} is not a whole safetensors file: {why}; fetch it again")]
    BrokenWeights {
        /// The file.
        file: String,
        /// What does not fit.
        why: String,
    },
    /// A file is not GGUF, is cut short, or holds a tensor of a kind that nobody knows.
    #[error(
        "{file} is not a whole GGUF file that can be read: {why}; fetch it again, with tensors of {}",
        crate::gguf::DTYPE_NAMES
    )]
    BrokenGguf {
        /// The file.
        file: String,
        /// What does not fit.
        why: String,
    },
    /// A tensor of a GGUF file is stored in a type that is not converted.
    #[error(
        "{file}: tensor {tensor:?} is stored as {got}, supported: {}; fetch or make a file of these types",
        crate::gguf::DTYPE_NAMES
    )]
    GgufDtype {
        /// The file.
        file: String,
        /// Its name in the file.
        tensor: String,
        /// Type in the file.
        got: String,
    },
    /// A number is too large for the type that a GGUF file is to store it in.
    #[error(
        "tensor {tensor:?} holds {got}, which does not fit into {asked}; store it as f32 or bf16"
    )]
    GgufRange {
        /// Its name in the file.
        tensor: String,
        /// The largest absolute value.
        got: f32,
        /// Name of the type.
        asked: &'static str,
    },
    /// A key that a config must have is absent or null.
    #[error("{file}: key {key:?} is missing")]
    MissingKey {
        /// The file.
        file: String,
        /// Dotted path of the key.
        key: String,
    },
    /// A key's value has the wrong type.
    #[error("{file}: key {key:?}: {why}")]
    BadValue {
        /// The file.
        file: String,
        /// Dotted path of the key.
        key: String,
        /// What was found and expected.
        why: String,
    },
    /// Keys that mean nothing here, so that ignoring them could change the model.
    #[error("{file}: unknown keys: {keys}; remove them if they do not change the forward pass")]
    UnknownKeys {
        /// The file.
        file: String,
        /// Dotted paths, comma separated.
        keys: String,
    },
    /// A value that is valid in general but not implemented.
    #[error("{file}: key {key:?} is {got}, supported: {supported}")]
    Unsupported {
        /// The file.
        file: String,
        /// Dotted path of the key.
        key: String,
        /// The value found.
        got: String,
        /// What would have been accepted.
        supported: String,
    },
    /// The model needs a tensor that no file holds.
    #[error("{file}: tensor {tensor:?} is missing")]
    MissingTensor {
        /// The file or the index that should list it.
        file: String,
        /// Its name.
        tensor: String,
    },
    /// Files hold tensors that the model has no use for.
    #[error("{file}: unexpected tensors: {tensors}; the config describes a model without them")]
    UnexpectedTensors {
        /// The first file that holds one.
        file: String,
        /// Names, comma separated, at most eight.
        tensors: String,
    },
    /// A tensor's shape contradicts the config.
    #[error("{file}: tensor {tensor:?} is {got:?}, the config wants {want:?}")]
    Shape {
        /// The file.
        file: String,
        /// Its name.
        tensor: String,
        /// Shape in the file.
        got: Vec<usize>,
        /// Shape that the config implies.
        want: Vec<usize>,
    },
    /// A tensor is stored in a type that is not converted.
    #[error("{file}: tensor {tensor:?} is stored as {got}, supported: BF16, F16, F32")]
    Dtype {
        /// The file.
        file: String,
        /// Its name.
        tensor: String,
        /// Type in the file.
        got: String,
    },
    /// A list of whole numbers is stored in another type.
    #[error("{file}: tensor {tensor:?} is stored as {got}, supported: I64, I32, U32, U8, BOOL")]
    IntegerDtype {
        /// The file.
        file: String,
        /// Its name.
        tensor: String,
        /// Type in the file.
        got: String,
    },
    /// No target has this id.
    #[error("target {id:?} is unknown; known: {known}")]
    UnknownTarget {
        /// The id asked for.
        id: String,
        /// Known ids, comma separated.
        known: String,
    },
    /// The caller asks for a cache that cannot be built.
    #[error("cannot build a cache of {slots} slots with {capacity} positions: {why}")]
    Cache {
        /// Slots asked for.
        slots: usize,
        /// Positions a slot asked for.
        capacity: usize,
        /// What is wrong.
        why: String,
    },
    /// A tensor operation failed while building the model.
    #[error("cannot build the model: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// Result of loading.
pub(crate) type Result<T> = std::result::Result<T, LoadError>;
