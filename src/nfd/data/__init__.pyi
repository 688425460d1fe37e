from .dataset import Dataset as Dataset
