//! Everything one target needs before the first measured token: prompts rendered, models loaded, lengths checked.

use std::collections::BTreeMap;

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

/// A target with its methods and prompts.
pub(crate) struct Stage {
    /// The target.
    pub(crate) target: Decoder,
    /// Arms that can run, each with its index in the plan, in its order.
    pub(crate) arms: Vec<(usize, Arm)>,
    /// Prompts by suite and thinking switch, one entry a prompt.
    asks: BTreeMap<(&'static str, Thinking), Vec<Ask>>,
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
}

/// Renders, loads and checks one target of the plan.
///
/// # Errors
/// If a file is missing or wrong, a drafter belongs to another target, or a prompt does not fit into the cache.
pub(crate) fn prepare(plan: &Plan, target_idx: usize) -> Result<Stage> {
    let target = &plan.targets[target_idx];
    let config = DecoderConfig::load(&target.source)?;
    let asks = render_all(plan, target_idx)?;
    let fit = Fit {
        target: target.spec.id,
        max_new: plan.limits.max_new,
        capacity: config.max_positions,
    };
    fit.check_all(&asks, 1)?;
    let longest = asks.values().flatten().map(|a| a.tokens.len()).max();
    let wanted = longest.unwrap_or(0) + plan.limits.max_new + ROUND_ROOM;
    let slots: Vec<usize> = (0..plan.arms.len())
        .map(|arm_idx| plan.most_at_once(target_idx, arm_idx) as usize)
        .collect();
    let (target, arms) = load(target, &slots, wanted.min(config.max_positions))?;
    let round = arms.iter().map(|a| a.1.drafter.max_draft() + 1).max();
    fit.check_all(&asks, round.unwrap_or(1))?;
    Ok(Stage { target, arms, asks })
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
        let arm = Arm {
            method: plan.key().to_owned(),
            drafter,
            schedule: plan.schedule,
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

/// The tokenizer and chat template that lie beside a model.
///
/// # Errors
/// If one of the files is missing or not understood.
pub(crate) fn renderer(source: &Source) -> Result<suites::Renderer> {
    let tokenizer = source.read("tokenizer.json")?;
    let config = source.read("tokenizer_config.json")?;
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
) -> Result<BTreeMap<(&'static str, Thinking), Vec<Ask>>> {
    let renderer = renderer(&plan.targets[target_idx].source)?;
    let mut out = BTreeMap::new();
    for id in &plan.suites {
        let suite = suites::load(id)?;
        let n = plan.limits.prompts;
        let its = plan.groups.iter().filter(|g| g.target == target_idx);
        for group in its.filter(|g| g.suite == *id) {
            let thinking = group.setting.thinking;
            if out.contains_key(&(*id, thinking)) {
                continue;
            }
            let mut asks = Vec::new();
            for (idx, prompt) in suite.prompts.iter().take(n).enumerate() {
                let what = || format!("suite {id}: prompt {}", prompt.id);
                ensure!(
                    prompt.turns.len() == 1,
                    "{} has {} turns; only prompts of one turn can be run",
                    what(),
                    prompt.turns.len()
                );
                let rendered = renderer
                    .render(&prompt.turns, switch(thinking))
                    .with_context(what)?;
                asks.push(Ask {
                    id: idx as RequestId,
                    prompt: PromptKey {
                        id: prompt.id.to_string(),
                        sample: 0,
                        pass: 0,
                        sha256: rendered.sha256,
                        n_tokens: rendered.token_ids.len() as u32,
                    },
                    tokens: rendered.token_ids,
                });
            }
            out.insert((*id, thinking), asks);
        }
    }
    Ok(out)
}

/// What a slot must hold.
struct Fit {
    target: &'static str,
    max_new: usize,
    capacity: usize,
}

impl Fit {
    fn check_all(
        &self,
        asks: &BTreeMap<(&'static str, Thinking), Vec<Ask>>,
        round: usize,
    ) -> Result<()> {
        for ((suite, _), asks) in asks {
            for ask in asks {
                let what = format!("suite {suite}: prompt {}", ask.prompt.id);
                check_fit(&what, ask.tokens.len(), self.max_new, round, self)?;
            }
        }
        Ok(())
    }
}

fn check_fit(what: &str, n_prompt: usize, max_new: usize, round: usize, fit: &Fit) -> Result<()> {
    let need = n_prompt + max_new + round;
    if need > fit.capacity {
        bail!(
            "{what} needs {need} cache positions ({n_prompt} prompt tokens + {max_new} new + {round} for one round), target {} holds {}; shorten the prompt or lower --max-new",
            fit.target,
            fit.capacity
        );
    }
    Ok(())
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
    };
    check_fit("the prompt", n_prompt, max_new, round, &fit)?;
    Ok((n_prompt + max_new + ROUND_ROOM).min(config.max_positions))
}
