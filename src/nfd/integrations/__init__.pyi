from .lightning_callback import LightningCallback as LightningCallback
from .rows import to_tensorboard as to_tensorboard
from .rows import to_wandb as to_wandb
from .trainer_callback import TrainerCallback as TrainerCallback
