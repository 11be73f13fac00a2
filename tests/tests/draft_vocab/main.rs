//! Block drafters that draft a part of the vocabulary, held against the same ones with all of it.
#![allow(
    clippy::unwrap_used,
    reason = "a helper fails its test by panicking, as the test's own body does"
)]

mod kept;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use baselines::{Arm, BlockDrafter, DFlash, DSpark, Dcoco, Domino, Load, TargetFacts};
use candle_core::{DType, Device, Tensor};
use decode::{
    Anchor, Committed, Drafter, Draws, Feed, Generation, Keep, LayerId, Parts, Probe, Proposal,
    Request, Sampling, Settings, Silent, Slot, StepCost, Target, TokenId, TokenIo, VerifyAll,
    decode,
};
use models::{Decoder, DecoderConfig, DecoderOptions, Precision, Source};
use serde_json::{Value, json};
use suites::{Renderer, Thinking};
use tests::golden::{self, H, P0, V};
use tests::{hash_weights, reduce};

const SAMPLED: Sampling = Sampling::at(800);
/// Ids that the golden drafters can draft where some are left out.
const KEPT: [u32; 11] = [0, 2, 3, 8, 11, 14, 20, 26, 27, 33, 38];

/// A drafter's files before they are written.
#[derive(Clone)]
struct Files {
    method: &'static str,
    config: Value,
    weights: BTreeMap<String, Tensor>,
}

impl Files {
    fn golden() -> Vec<Self> {
        let of = |method, config, weights| Self {
            method,
            config,
            weights,
        };
        let dflash = hash_weights(&golden::dflash_shapes(), 2000);
        vec![
            of("dflash", golden::dflash_config(), dflash),
            of("dspark", golden::dspark_config(), golden::dspark_weights()),
            of("domino", golden::domino_config(), golden::domino_weights()),
            of("dcoco", golden::dcoco_config(), golden::dcoco_weights()),
        ]
    }

    /// The drafters of an embedded target.
    fn tiny() -> Vec<Self> {
        let read = |method| {
            let dir = tests::workspace().join(format!("assets/tiny/tiny-qwen3-{method}"));
            let config = std::fs::read(dir.join("config.json")).unwrap();
            Self {
                method,
                config: serde_json::from_slice(&config).unwrap(),
                weights: tensors(&dir),
            }
        };
        ["dflash", "dspark", "domino", "dcoco"].map(read).to_vec()
    }

    /// The same drafter with a draft vocabulary.
    fn keeping(&self, kept: &[u32], head: &Tensor) -> Self {
        let mut files = self.clone();
        reduce(&mut files.config, &mut files.weights, head, kept);
        files
    }

    fn load<T>(
        &self,
        arm: &str,
        (target, precision): (&TargetFacts, Precision),
        load: impl FnOnce(&Arm, &Load<'_>) -> baselines::Result<T>,
    ) -> baselines::Result<T> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), self.config.to_string()).unwrap();
        let tensors: HashMap<String, Tensor> = self.weights.clone().into_iter().collect();
        candle_core::safetensors::save(&tensors, dir.path().join("model.safetensors")).unwrap();
        let arm = Arm::parse(arm).unwrap();
        load(
            &arm,
            &Load {
                source: Some(&Source::Dir(dir.path().to_owned())),
                target,
                slots: 1,
                capacity: 256,
                precision,
                max_draft: None,
                options: &arm.options,
            },
        )
    }

    fn drafter(&self, target: &TargetFacts) -> Box<dyn Drafter> {
        self.arm(self.method, target)
    }

    fn arm(&self, arm: &str, target: &TargetFacts) -> Box<dyn Drafter> {
        let load = |arm: &Arm, load: &Load<'_>| arm.method.load(load);
        self.load(arm, (target, Precision::F32), load).unwrap()
    }
}

fn tensors(dir: &std::path::Path) -> BTreeMap<String, Tensor> {
    let read = candle_core::safetensors::load(dir.join("model.safetensors"), &Device::Cpu);
    read.unwrap().into_iter().collect()
}

fn facts() -> TargetFacts {
    TargetFacts {
        id: "golden".into(),
        hidden: H,
        vocab: V,
        n_layers: 6,
    }
}

fn golden_head() -> Tensor {
    hash_weights(&golden::target_shapes(), 1000)["lm_head.weight"].clone()
}

/// An embedded target, what drafters must know of it, and its head.
fn tiny() -> (Decoder, TargetFacts, Tensor) {
    let dir = tests::workspace().join("assets/tiny/tiny-qwen3");
    let source = Source::Dir(dir.clone());
    let options = DecoderOptions {
        slots: 1,
        capacity: 256,
        precision: Precision::F32,
    };
    let config = DecoderConfig::load(&source).unwrap();
    let facts = TargetFacts {
        id: "tiny-qwen3".into(),
        hidden: config.hidden,
        vocab: config.vocab,
        n_layers: config.n_layers,
    };
    let head = tensors(&dir)["model.embed_tokens.weight"].clone();
    (Decoder::load(&source, options).unwrap(), facts, head)
}

/// A drafter that remembers what it proposed.
struct Recorded {
    inner: Box<dyn Drafter>,
    drafts: Vec<Vec<TokenId>>,
}

impl Drafter for Recorded {
    fn taps(&self) -> &[LayerId] {
        self.inner.taps()
    }
    fn max_draft(&self) -> usize {
        self.inner.max_draft()
    }
    fn start(&mut self, prompt: Committed<'_>) -> decode::Result<()> {
        self.inner.start(prompt)
    }
    fn propose(
        &mut self,
        rows: &mut [Anchor<'_>],
        io: &dyn TokenIo,
        sampling: Sampling,
        probe: &mut dyn Probe,
    ) -> decode::Result<Vec<Proposal>> {
        let proposals = self.inner.propose(rows, io, sampling, probe)?;
        let drafts = proposals.iter().map(|p| p.tokens.clone());
        self.drafts.extend(drafts);
        Ok(proposals)
    }
    fn commit(&mut self, rows: Vec<Committed<'_>>) -> decode::Result<()> {
        self.inner.commit(rows)
    }
    fn finish(&mut self, slot: Slot) {
        self.inner.finish(slot);
    }
}

/// Prompts that the golden target is asked.
fn golden_prompts() -> Vec<Vec<TokenId>> {
    let prompt = |id: u32| (0..3 + id).map(move |i| (id * 17 + i * 7 + 6) % 39);
    (0..6).map(|id| prompt(id).collect()).collect()
}

/// Prompts of a suite that the embedded target and its drafters know.
fn tiny_prompts() -> Vec<Vec<TokenId>> {
    let read = |name: &str| {
        let dir = tests::workspace().join("assets/tiny/tiny-qwen3");
        std::fs::read(dir.join(name)).unwrap()
    };
    let (tokenizer, config) = (read("tokenizer.json"), read("tokenizer_config.json"));
    let renderer = Renderer::from_bytes(&tokenizer, &config).unwrap();
    let prompts = suites::load("mini-chat").unwrap().prompts.into_iter();
    let rendered = prompts.map(|p| renderer.render(&p.turns[..1], Thinking::Off).unwrap());
    rendered.map(|r| r.token_ids).take(6).collect()
}

/// Greedy answers.
fn answers(
    target: &mut Decoder,
    drafter: &mut dyn Drafter,
    prompts: &[Vec<TokenId>],
) -> Vec<Generation> {
    let requests = (0..).zip(prompts).map(|(id, prompt)| Request {
        id,
        prompt: prompt.clone(),
        max_new: 40,
    });
    let settings = Settings {
        slots: 1,
        sampling: Sampling::Greedy,
        seed: 0,
        cost: StepCost::flat(),
    };
    let parts = Parts {
        target,
        drafter,
        scheduler: &mut VerifyAll,
        probe: &mut Silent,
    };
    decode(parts, requests.collect(), &settings).unwrap()
}

fn texts(generations: &[Generation]) -> Vec<&[TokenId]> {
    generations.iter().map(|g| g.tokens.as_slice()).collect()
}

fn accepted(generations: &[Generation]) -> u32 {
    let rounds = generations.iter().flat_map(|g| &g.rounds);
    rounds.map(|round| round.accepted).sum()
}

/// Greedy answers with a drafter, and all that it drafted.
fn recorded(
    target: &mut Decoder,
    drafter: Box<dyn Drafter>,
    prompts: &[Vec<TokenId>],
) -> (Vec<Generation>, Vec<Vec<TokenId>>) {
    let mut recorded = Recorded {
        inner: drafter,
        drafts: Vec::new(),
    };
    let answers = answers(target, &mut recorded, prompts);
    (answers, recorded.drafts)
}

fn drafted(drafts: &[Vec<TokenId>]) -> BTreeSet<TokenId> {
    drafts.iter().flatten().copied().collect()
}

/// Leaves out one id that is never drafted, early in the vocabulary, so that most draft ids are not target ids.
fn check_without_one(
    target: &mut Decoder,
    (files, prompts): (&Files, &[Vec<TokenId>]),
    facts: &TargetFacts,
    head: &Tensor,
) {
    let (want, drafts) = recorded(target, files.drafter(facts), prompts);
    let drafted = drafted(&drafts);
    let vocab = facts.vocab as u32;
    let unused = (1..vocab).find(|id| !drafted.contains(id)).unwrap();
    let kept: Vec<u32> = (0..vocab).filter(|id| *id != unused).collect();
    let few = files.keeping(&kept, head);
    let (got, few_drafts) = recorded(target, few.drafter(facts), prompts);
    let what = format!("{} without {unused} of {}", files.method, facts.id);
    assert_eq!(few_drafts, drafts, "{what}");
    assert_eq!(texts(&got), texts(&want), "{what}");
}

#[test]
fn an_id_that_is_never_drafted_is_not_missed() {
    for files in Files::golden() {
        check_without_one(
            &mut golden::target(1),
            (&files, &golden_prompts()),
            &facts(),
            &golden_head(),
        );
    }
    let (mut target, facts, head) = tiny();
    let prompts = tiny_prompts();
    for files in Files::tiny() {
        check_without_one(&mut target, (&files, &prompts), &facts, &head);
    }
}

#[test]
fn a_tiny_targets_text_is_its_own_when_few_ids_can_be_drafted() {
    let (mut target, facts, head) = tiny();
    let prompts = tiny_prompts();
    let want = answers(&mut target, &mut baselines::Vanilla, &prompts);
    // Of the ids that the target says one in five is left out, of the others every second.
    let said: BTreeSet<TokenId> = texts(&want).concat().into_iter().collect();
    let gone: BTreeSet<TokenId> = said.iter().copied().step_by(5).collect();
    let is_kept = |id: &u32| !gone.contains(id) && (said.contains(id) || id.is_multiple_of(2));
    let kept: Vec<u32> = (0..facts.vocab as u32).filter(is_kept).collect();
    for files in Files::tiny() {
        let few = files.keeping(&kept, &head);
        let (got, drafts) = recorded(&mut target, few.drafter(&facts), &prompts);
        assert_eq!(texts(&got), texts(&want), "{}", files.method);
        assert!(drafted(&drafts).iter().all(is_kept));
        let n = accepted(&got);
        assert!(n > 20, "{} had {n} drafts accepted", files.method);
    }
}

/// A target that embeds and has no head to lend.
struct Headless<'a>(&'a Decoder);

impl TokenIo for Headless<'_> {
    fn vocab(&self) -> usize {
        self.0.vocab()
    }
    fn embed(&self, ids: &Tensor) -> decode::Result<Tensor> {
        self.0.embed(ids)
    }
    fn lm_head(&self, _: &Tensor) -> decode::Result<Tensor> {
        panic!("a drafter with a head of its own has no use for the target's")
    }
}

/// The golden target with P0 in it and in the drafter.
fn started(drafter: &mut dyn Drafter) -> Decoder {
    let mut target = golden::target(1);
    let feed = Feed {
        slot: Slot(0),
        tokens: &P0,
        parents: None,
        logits: Keep::Last,
    };
    let taps = target.forward(&[feed], drafter.taps()).unwrap().taps;
    let row = Committed {
        slot: Slot(0),
        position: 0,
        fed: &P0,
        next_anchor: ANCHOR,
        taps,
    };
    drafter.start(row).unwrap();
    target
}

/// Behind P0; no id that [`KEPT`] has.
const ANCHOR: TokenId = 29;

fn anchor(draws: &mut Draws) -> Anchor<'_> {
    Anchor {
        slot: Slot(0),
        token: ANCHOR,
        position: P0.len(),
        draws,
    }
}

/// What a drafter of few ids proposes after P0, without the target's head.
fn propose(drafter: &mut dyn Drafter, sampling: Sampling, seed: u64) -> Proposal {
    let target = started(drafter);
    let draws = &mut Draws::new(seed, 0);
    let rows = &mut [anchor(draws)];
    let proposals = drafter.propose(rows, &Headless(&target), sampling, &mut Silent);
    drafter.finish(Slot(0));
    proposals.unwrap().remove(0)
}

#[test]
fn a_reduced_head_is_kept_in_the_precision_asked_for() {
    for files in Files::golden() {
        let files = files.keeping(&KEPT, &golden_head());
        let load = |arm: &Arm, load: &Load<'_>| arm.method.load(load);
        let with = (&facts(), Precision::Bf16);
        let mut drafter = files.load(files.method, with, load).unwrap();
        let got = propose(&mut *drafter, Sampling::Greedy, 0).tokens;
        assert!(got.iter().all(|id| KEPT.contains(id)), "{got:?}");
    }
}

#[test]
fn logits_have_a_column_for_each_id_that_is_kept() {
    fn check<T>(mut drafter: BlockDrafter<T>, width: usize)
    where
        BlockDrafter<T>: Drafter,
    {
        let target = started(&mut drafter);
        let draws = &mut Draws::new(0, 0);
        let (hidden, logits) = drafter.draft(&[anchor(draws)], &target).unwrap();
        let gamma = drafter.max_draft();
        assert_eq!(hidden.dims(), [gamma, H]);
        assert_eq!(logits.dims(), [gamma, width]);
        let ids = drafter.target_ids().map(<[u32]>::to_vec);
        assert_eq!(ids, (width < V).then(|| KEPT.to_vec()));
    }
    for full in Files::golden() {
        let few = full.keeping(&KEPT, &golden_head());
        for (files, width) in [(full, V), (few, KEPT.len())] {
            let with = (&facts(), Precision::F32);
            let method = files.method;
            match method {
                "dflash" => check(
                    files.load(method, with, |_, l| DFlash::load(l)).unwrap(),
                    width,
                ),
                "dspark" => check(
                    files.load(method, with, |_, l| DSpark::load(l)).unwrap(),
                    width,
                ),
                "domino" => check(
                    files.load(method, with, |_, l| Domino::load(l)).unwrap(),
                    width,
                ),
                _ => check(
                    files.load(method, with, |_, l| Dcoco::load(l)).unwrap(),
                    width,
                ),
            }
        }
    }
}

#[test]
fn what_a_whole_vocabulary_brings_along_changes_nothing() {
    for files in Files::golden() {
        let (_, want) = recorded(
            &mut golden::target(1),
            files.drafter(&facts()),
            &golden_prompts(),
        );
        let mut copies = files.clone();
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        copies.config["draft_vocab_size"] = V.into();
        let mut put = |name: &str, tensor| copies.weights.insert(name.into(), tensor);
        put("lm_head.weight", zeros(&[V, H], DType::F32));
        put("d2t", zeros(&[V], DType::I64));
        put("t2d", Tensor::ones(V, DType::U8, &Device::Cpu).unwrap());
        let (_, got) = recorded(
            &mut golden::target(1),
            copies.drafter(&facts()),
            &golden_prompts(),
        );
        assert_eq!(got, want, "{}", files.method);
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let load = |arm: &Arm, load: &Load<'_>| arm.method.load(load);
    let refused = |files: &Files, change: &dyn Fn(&mut Files), says: &[&str]| {
        let mut files = files.keeping(&KEPT, &golden_head());
        change(&mut files);
        let with = (&facts(), Precision::F32);
        let error = files.load(files.method, with, load).err().unwrap();
        let error = error.to_string();
        for part in says {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    };
    let drop_tensor = |name: &'static str| move |f: &mut Files| drop(f.weights.remove(name));
    let set = |key: &'static str, to: Value| move |f: &mut Files| f.config[key] = to.clone();
    let safetensors = "model.safetensors";
    for files in &Files::golden() {
        let missing = "is missing; a draft_vocab_size of 11, where vocab_size is 40, needs it";
        refused(
            files,
            &drop_tensor("d2t"),
            &[safetensors, "\"d2t\"", missing],
        );
        let head = "lm_head.weight";
        refused(files, &drop_tensor(head), &[safetensors, head, missing]);
        for size in [0, V + 1] {
            let says = format!("draft_vocab_size {size} must lie between 1 and vocab_size 40");
            let change = set("draft_vocab_size", size.into());
            refused(files, &change, &["config.json", &says]);
        }
        let change = set("draft_vocab_size", json!(12));
        refused(files, &change, &[safetensors, "[11"]);
        let contrary = |f: &mut Files| {
            let all = Tensor::ones(V, DType::U8, &Device::Cpu).unwrap();
            f.weights.insert("t2d".into(), all);
        };
        refused(files, &contrary, &["\"d2t\" and \"t2d\""]);
    }
    let dcoco = &Files::golden()[3];
    let many = |f: &mut Files| f.config["dflash_config"]["corrector_candidates"] = json!(12);
    let says = "corrector_candidates 12 exceed the 11 tokens that can be drafted";
    refused(dcoco, &many, &["config.json", says]);
}
