from .lightning_callback import LightningCallback as LightningCallback
from .planned import to_tensorboard as to_tensorboard
from .planned import to_wandb as to_wandb
from .trainer_callback import TrainerCallback as TrainerCallback
