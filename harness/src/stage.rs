//! Everything one target needs before the first measured token: prompts rendered, models loaded, lengths checked.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use baselines::{Load, TargetFacts};
use decode::RequestId;
use models::{Decoder, DecoderConfig, DecoderOptions, Source};
use reports::{PromptKey, Thinking};

use crate::arms::{DrafterPlan, TargetPlan};
use crate::engine::{Arm, Ask};
use crate::group::Setting;
use crate::plan::Plan;
use crate::schedule::Schedule;

/// Cache positions set aside for one verify pass before drafters are loaded; [`load`] refuses a drafter that asks
/// for more.
const ROUND_ROOM: usize = 64;

/// Positions set aside for what a text may grow by when it is tokenized anew as part of a longer conversation.
const TURN_ROOM: usize = 32;

/// A target with its methods and prompts.
pub(crate) struct Stage {
    /// The target.
    pub(crate) target: Decoder,
    /// Arms that can run, each with its index in the plan, in its order.
    pub(crate) arms: Vec<(usize, Arm)>,
    /// The target's tokenizer and template.
    pub(crate) renderer: suites::Renderer,
    /// What a slot holds.
    pub(crate) fit: Fit,
    /// What it took to render prompts and to load models.
    pub(crate) load_ns: u64,
    /// Prompts by suite and thinking switch, one entry a prompt.
    asks: ByKey<Ask>,
    /// Those that do not fit, with the reason.
    unfit: ByKey<(PromptKey, String)>,
}

type ByKey<T> = BTreeMap<(&'static str, Thinking), Vec<T>>;

/// What to do if no prompt of a target fits into its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoneFits {
    /// Refuse: nothing would be measured.
    Refused,
    /// Go on: of a shard, other groups of the plan may fit, and all shards together give what one run would.
    Skipped,
}

impl Stage {
    /// Prompts of one block of cells, each as often as it has samples.
    pub(crate) fn asks(&self, suite: &'static str, setting: Setting, samples: u32) -> Vec<Ask> {
        let prompts = self.asks.get(&(suite, setting.thinking));
        let each = |ask: &Ask| -> Vec<Ask> {
            (0..samples)
                .map(|sample| {
                    let mut ask = ask.clone();
                    ask.id |= RequestId::from(sample) << 32;
                    ask.prompt.sample = sample;
                    ask
                })
                .collect()
        };
        prompts.into_iter().flatten().flat_map(each).collect()
    }

    /// Prompts of one block of cells that are too long, with the reason.
    pub(crate) fn unfit(&self, suite: &'static str, setting: Setting) -> &[(PromptKey, String)] {
        let prompts = self.unfit.get(&(suite, setting.thinking));
        prompts.map_or(&[], Vec::as_slice)
    }
}

/// Prompts that fit and those that do not.
#[derive(Default)]
struct Sorted {
    asks: ByKey<Ask>,
    unfit: ByKey<(PromptKey, String)>,
}

impl Sorted {
    /// Takes prompts in and puts those that do not fit aside.
    ///
    /// # Errors
    /// With the reason of the first if none fits and that is refused.
    fn sort(&mut self, asks: ByKey<Ask>, fit: &Fit, none_fits: NoneFits) -> Result<()> {
        for (key, asks) in asks {
            let (fits, unfit) = (
                self.asks.entry(key).or_default(),
                self.unfit.entry(key).or_default(),
            );
            for ask in asks {
                match fit.lacks(ask.tokens.len()) {
                    None => fits.push(ask),
                    Some(why) => unfit.push((ask.prompt, why)),
                }
            }
            // However they came to be here, a reader finds them in the order of the suite.
            unfit.sort_by_key(|(prompt, _)| prompt.id.parse::<u64>().ok());
        }
        let mut lists = self.unfit.iter();
        match lists.find_map(|(key, list)| Some((key.0, list.first()?))) {
            Some((suite, (prompt, why)))
                if none_fits == NoneFits::Refused && self.asks.values().all(Vec::is_empty) =>
            {
                bail!("suite {suite}: prompt {} {why}", prompt.id)
            }
            _ => Ok(()),
        }
    }
}

/// Renders, loads and checks one target of the plan.
///
/// # Errors
/// If a file is missing or wrong, a drafter belongs to another target, or no prompt at all fits into the cache and that
/// is refused.
pub(crate) fn prepare(plan: &Plan, target_idx: usize, none_fits: NoneFits) -> Result<Stage> {
    let began = Instant::now();
    let target = &plan.targets[target_idx];
    let config = DecoderConfig::load(&target.source)?;
    let renderer = renderer(&target.source)?;
    let fit = Fit {
        target: target.spec.id,
        max_new: plan.limits.max_new,
        capacity: config.max_positions,
        round: 1,
    };
    let asks = render_all(plan, target_idx, &renderer, &fit)?;
    // Bad input is found before weights are loaded where that is possible.
    let mut sorted = Sorted::default();
    sorted.sort(asks, &fit, none_fits)?;
    let slots: Vec<usize> = (0..plan.arms.len())
        .map(|arm_idx| plan.most_at_once(target_idx, arm_idx) as usize)
        .collect();
    let rooms = sorted.asks.values().flatten().map(|ask| ask.room);
    let capacity = rooms.max().unwrap_or(config.max_positions);
    let (target, arms) = load(target, &slots, capacity)?;
    let round = arms.iter().map(|a| a.1.drafter.max_draft() + 1).max();
    let fit = Fit {
        round: round.unwrap_or(1),
        ..fit
    };
    let asks = std::mem::take(&mut sorted.asks);
    sorted.sort(asks, &fit, none_fits)?;
    Ok(Stage {
        target,
        arms,
        renderer,
        fit,
        load_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        asks: sorted.asks,
        unfit: sorted.unfit,
    })
}

/// Loads a target and its drafters; `slots` are the sequences at once of each arm of the plan, `capacity` the
/// positions of each slot.
///
/// # Errors
/// If a file is missing or wrong or a drafter belongs to another target.
pub(crate) fn load(
    target: &TargetPlan,
    slots: &[usize],
    capacity: usize,
) -> Result<(Decoder, Vec<(usize, Arm)>)> {
    let room = DecoderOptions {
        slots: slots.iter().copied().max().unwrap_or(1),
        capacity,
        precision: target.precision,
    };
    let decoder = Decoder::load(&target.source, room)
        .with_context(|| format!("target {}", target.spec.id))?;
    ensure!(
        !decode::Target::stop_tokens(&decoder).is_empty(),
        "target {}: neither config.json nor generation_config.json of {} names an eos_token_id, so no answer would end",
        target.spec.id,
        target.source.place()
    );
    let facts = facts(target, &decoder);
    let mut arms = Vec::new();
    for (arm_idx, (drafter, slots)) in target.drafters.iter().zip(slots).enumerate() {
        let DrafterPlan::Ready(plan, source) = drafter else {
            continue;
        };
        let load = Load {
            source: source.as_ref(),
            target: &facts,
            slots: *slots,
            capacity,
            precision: target.precision,
            max_draft: plan.max_draft,
            options: &plan.arm.options,
        };
        let drafter = plan
            .arm
            .method
            .load(&load)
            .with_context(|| format!("method {}", plan.key()))?;
        ensure!(
            plan.schedule == Schedule::All || drafter.rates_drafts(),
            "method {}: its drafter gives no confidences, which a schedule needs; leave schedule= out",
            plan.key()
        );
        let n_drafts = drafter.max_draft();
        ensure!(
            n_drafts < ROUND_ROOM,
            "method {}: its drafter proposes {n_drafts} tokens a round, at most {} can be verified",
            plan.key(),
            ROUND_ROOM - 1
        );
        let drawn = plan.acceptance.is_synthetic();
        ensure!(
            !(drawn && drafter.drafts_trees()),
            "method {}: acceptance=synthetic-T is for chains of drafts, its drafter proposes trees; leave mode=tree out",
            plan.key()
        );
        let method = || format!("method {}", plan.key());
        plan.acceptance.check(n_drafts).with_context(method)?;
        let arm = Arm {
            method: plan.key().to_owned(),
            drafter,
            schedule: plan.schedule,
            acceptance: plan.acceptance,
        };
        arms.push((arm_idx, arm));
    }
    Ok((decoder, arms))
}

/// What a drafter must fit.
pub(crate) fn facts(target: &TargetPlan, decoder: &Decoder) -> TargetFacts {
    let config = decoder.config();
    TargetFacts {
        id: target.spec.id.to_owned(),
        hidden: config.hidden,
        vocab: config.vocab,
        n_layers: config.n_layers,
    }
}

/// The tokenizer and chat template that lie beside a model. Newer folders have the template in `chat_template.jinja`,
/// which goes before the key of tokenizer_config.json, as in transformers.
///
/// # Errors
/// If one of the files is missing or not understood.
pub(crate) fn renderer(source: &Source) -> Result<suites::Renderer> {
    const TEMPLATE: &str = "chat_template.jinja";
    const CONFIG: &str = "tokenizer_config.json";
    let tokenizer = source.read("tokenizer.json")?;
    let mut config = source.read(CONFIG)?;
    if source.exists(TEMPLATE) {
        let template = String::from_utf8(source.read(TEMPLATE)?);
        let template = template.with_context(|| source.label(TEMPLATE))?;
        let mut keys: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&config).with_context(|| source.label(CONFIG))?;
        keys.insert("chat_template".to_owned(), template.into());
        config = serde_json::to_vec(&keys)?;
    }
    suites::Renderer::from_bytes(&tokenizer, &config)
        .with_context(|| format!("tokenizer of {}", source.place()))
}

/// A conversation that is one user turn.
pub(crate) fn one_turn(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

/// The suites crate's name for the switch.
pub(crate) fn switch(thinking: Thinking) -> suites::Thinking {
    match thinking {
        Thinking::Off => suites::Thinking::Off,
        Thinking::On => suites::Thinking::On,
    }
}

fn render_all(
    plan: &Plan,
    target_idx: usize,
    renderer: &suites::Renderer,
    fit: &Fit,
) -> Result<ByKey<Ask>> {
    let mut out = BTreeMap::new();
    for id in &plan.suites {
        let its = plan.groups.iter().filter(|g| g.target == target_idx);
        for group in its.filter(|g| g.suite == *id) {
            let thinking = group.setting.thinking;
            if out.contains_key(&(*id, thinking)) {
                continue;
            }
            let mut asks = Vec::new();
            for (idx, prompt) in plan.library.prompts(id).iter().enumerate() {
                let what = || format!("suite {id}: prompt {}", prompt.id);
                let (first, later) = prompt.turns.split_at(1);
                let rendered = renderer
                    .render(first, switch(thinking))
                    .with_context(what)?;
                let n_prompt = rendered.token_ids.len();
                let need = conversation(&prompt.turns, n_prompt, fit.max_new, renderer);
                asks.push(Ask {
                    id: idx as RequestId,
                    prompt: PromptKey {
                        id: prompt.id.to_string(),
                        sample: 0,
                        pass: 0,
                        turn: 0,
                        sha256: rendered.sha256,
                        n_tokens: n_prompt as u32,
                    },
                    tokens: rendered.token_ids,
                    turns: first.to_vec(),
                    later: later.to_vec(),
                    room: (need.with_context(what)? + ROUND_ROOM).min(fit.capacity),
                    reference: prompt.reference.clone(),
                });
            }
            out.insert((*id, thinking), asks);
        }
    }
    Ok(out)
}

/// Cache positions of a whole conversation, its answers as long as they may be; `n_prompt` are the first turn's.
fn conversation(
    turns: &[String],
    n_prompt: usize,
    max_new: usize,
    renderer: &suites::Renderer,
) -> suites::Result<usize> {
    if turns.len() == 1 {
        return Ok(n_prompt + max_new);
    }
    let mut both: Vec<String> = Vec::new();
    for turn in turns {
        both.extend([turn.clone(), String::new()]);
    }
    both.pop();
    let whole = renderer.render(&both, suites::Thinking::Off)?;
    Ok(whole.token_ids.len() + turns.len() * (max_new + TURN_ROOM))
}

/// What a slot must hold.
pub(crate) struct Fit {
    target: &'static str,
    max_new: usize,
    /// Positions that the target has.
    capacity: usize,
    /// Rows of the longest round.
    round: usize,
}

impl Fit {
    /// Why a prompt of `n_prompt` tokens cannot be answered; `None` if it can.
    pub(crate) fn lacks(&self, n_prompt: usize) -> Option<String> {
        let (target, capacity) = (self.target, self.capacity);
        let (need, sum) = self.need(n_prompt);
        (need > capacity).then(|| {
            format!(
                "needs {need} cache positions ({sum}), target {target} holds {capacity}; shorten the prompt or lower --max-new"
            )
        })
    }

    /// Why a later turn cannot be answered in the `room` of its conversation; `None` if it can. The room is the
    /// conversation's own, so that what else is measured beside it changes nothing.
    pub(crate) fn lacks_turn(&self, n_prompt: usize, room: usize) -> Option<String> {
        let (need, sum) = self.need(n_prompt);
        let why = || format!("needs {need} cache positions ({sum}), its conversation has {room}");
        self.lacks(n_prompt).or((need > room).then(why))
    }

    fn need(&self, n_prompt: usize) -> (usize, String) {
        let (max_new, round) = (self.max_new, self.round);
        let sum = format!("{n_prompt} prompt tokens + {max_new} new + {round} for one round");
        (n_prompt + max_new + round, sum)
    }
}

/// Cache positions that one prompt and its answer ask for.
///
/// # Errors
/// If a prompt, its answer and one round of drafts do not fit into what the target can hold.
pub(crate) fn check_one(
    target: &TargetPlan,
    n_prompt: usize,
    max_new: usize,
    round: usize,
) -> Result<usize> {
    let config = DecoderConfig::load(&target.source)?;
    let fit = Fit {
        target: target.spec.id,
        max_new,
        capacity: config.max_positions,
        round,
    };
    if let Some(why) = fit.lacks(n_prompt) {
        bail!("the prompt {why}");
    }
    Ok((n_prompt + max_new + ROUND_ROOM).min(config.max_positions))
}
