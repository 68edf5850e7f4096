"""Tool calls as models write them: which format a model was taught, reading one from text, writing what opens one."""
